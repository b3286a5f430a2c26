module attributes {dhlo.names = {cap2 = "cells", cap3 = "sequences"}, dhlo.symbols = {s0 = [0, 64]}} {
  func.func @main(%arg0: tensor<1x?x16xf32, #dhlo.shape<["1", "s0", "16"]>> {dhlo.name = "x"}, %arg1: tensor<?x4x16xf32, #dhlo.shape<["cap2", "4", "16"]>> {dhlo.name = "s", dhlo.paged = "state"}, %arg2: tensor<?xi32, #dhlo.shape<["cap3"]>> {dhlo.name = "cells", dhlo.paged = "cells"}, %arg3: tensor<?xi32, #dhlo.shape<["cap3 + 1"]>> {dhlo.name = "starts", dhlo.paged = "starts"}, %arg4: tensor<?xi32, #dhlo.shape<["cap3"]>> {dhlo.name = "lengths", dhlo.paged = "lengths"}) -> (tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>, tensor<?x4x16xf32, #dhlo.shape<["cap2", "4", "16"]>> {dhlo.argument = 1 : i64}) attributes {dhlo.blocks = array<i64: 16>} {
    %0 = "dhlo.weight"() {name_ = "w"} : () -> tensor<4xf32>
    %1 = "dhlo.reshape"(%arg0) : (tensor<1x?x16xf32, #dhlo.shape<["1", "s0", "16"]>>) -> tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>
    %2 = "dhlo.reshape"(%arg0) : (tensor<1x?x16xf32, #dhlo.shape<["1", "s0", "16"]>>) -> tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>
    %3 = "dhlo.sigmoid"(%2) : (tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>) -> tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>
    %4:2 = "dhlo.recurrence"(%arg1, %arg2, %arg3, %arg4, %3, %2, %0) ({
    ^bb0(%arg5: tensor<1x4x16xf32>, %arg6: tensor<1x16x1xf32>, %arg7: tensor<1x16x1xf32>, %arg8: tensor<4xf32>):
      %6 = "dhlo.transpose"(%arg5) {perm = [0, 2, 1]} : (tensor<1x4x16xf32>) -> tensor<1x16x4xf32>
      %7 = "dhlo.broadcast"(%arg6) {dims = [0, 1, 2]} : (tensor<1x16x1xf32>) -> tensor<1x16x4xf32>
      %8 = "dhlo.broadcast"(%arg7) {dims = [0, 1, 2]} : (tensor<1x16x1xf32>) -> tensor<1x16x4xf32>
      %9 = "dhlo.broadcast"(%arg8) {dims = [2]} : (tensor<4xf32>) -> tensor<1x16x4xf32>
      %10 = "dhlo.mul"(%8, %9) : (tensor<1x16x4xf32>, tensor<1x16x4xf32>) -> tensor<1x16x4xf32>
      %11 = "dhlo.mul"(%6, %7) : (tensor<1x16x4xf32>, tensor<1x16x4xf32>) -> tensor<1x16x4xf32>
      %12 = "dhlo.add"(%11, %10) : (tensor<1x16x4xf32>, tensor<1x16x4xf32>) -> tensor<1x16x4xf32>
      %13 = "dhlo.reduce"(%12) {dims = [2], how = "sum"} : (tensor<1x16x4xf32>) -> tensor<1x16xf32>
      %14 = "dhlo.transpose"(%12) {perm = [0, 2, 1]} : (tensor<1x16x4xf32>) -> tensor<1x4x16xf32>
      "dhlo.yield"(%14, %13) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x4x16xf32>, tensor<1x16xf32>) -> ()
    }) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, tokens = 2 : i64} : (tensor<?x4x16xf32, #dhlo.shape<["cap2", "4", "16"]>>, tensor<?xi32, #dhlo.shape<["cap3"]>>, tensor<?xi32, #dhlo.shape<["cap3 + 1"]>>, tensor<?xi32, #dhlo.shape<["cap3"]>>, tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>, tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>, tensor<4xf32>) -> (tensor<?x4x16xf32, #dhlo.shape<["cap2", "4", "16"]>>, tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>)
    %5 = "dhlo.add"(%4#1, %1) : (tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>, tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>) -> tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>
    return %5, %4#0 : tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>, tensor<?x4x16xf32, #dhlo.shape<["cap2", "4", "16"]>>
  }
}
