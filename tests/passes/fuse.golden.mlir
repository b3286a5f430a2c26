module {
  func.func @main(%arg0: tensor<?x?xf32, #dhlo.shape<["n", "k"]>>, %arg1: tensor<?x8xf32, #dhlo.shape<["k", "8"]>>, %arg2: tensor<8xf32>) -> (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<8x?xf32, #dhlo.shape<["8", "n"]>>) {
    %0 = "dhlo.group"() ({
      %3 = "dhlo.matmul"(%arg0, %arg1) : (tensor<?x?xf32, #dhlo.shape<["n", "k"]>>, tensor<?x8xf32, #dhlo.shape<["k", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %4 = "dhlo.broadcast"(%arg2) {dims = [1]} : (tensor<8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %5 = "dhlo.add"(%3, %4) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %6 = "dhlo.tanh"(%5) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      "dhlo.yield"(%6) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    }) {anchor = "matmul", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %1:2 = "dhlo.group"() ({
      %3 = "dhlo.reduce"(%0) {dims = [1], how = "max"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
      %4 = "dhlo.broadcast"(%3) {dims = [0]} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %5 = "dhlo.sub"(%0, %4) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %6 = "dhlo.exp"(%5) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %7 = "dhlo.reduce"(%6) {dims = [1], how = "sum"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
      %8 = "dhlo.broadcast"(%7) {dims = [0]} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %9 = "dhlo.div"(%6, %8) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      %10 = "dhlo.mul"(%9, %0) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
      "dhlo.yield"(%9, %10) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    }) {anchor = "reduction", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>)
    %2 = "dhlo.group"() ({
      %3 = "dhlo.transpose"(%1#1) {perm = [1, 0]} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<8x?xf32, #dhlo.shape<["8", "n"]>>
      %4 = "dhlo.sigmoid"(%3) : (tensor<8x?xf32, #dhlo.shape<["8", "n"]>>) -> tensor<8x?xf32, #dhlo.shape<["8", "n"]>>
      "dhlo.yield"(%4) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x?xf32, #dhlo.shape<["8", "n"]>>) -> ()
    }) {anchor = "loops", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<8x?xf32, #dhlo.shape<["8", "n"]>>
    return %1#0, %2 : tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<8x?xf32, #dhlo.shape<["8", "n"]>>
  }
}
