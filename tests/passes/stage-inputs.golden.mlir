module {
  func.func @main(%arg0: tensor<4x3xf32>, %arg1: tensor<f32>, %arg2: tensor<2x?xf32, #dhlo.shape<["2", "cap2"]>> {dhlo.filled = "s0", dhlo.grows = 1 : i64}, %arg3: tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>, %arg4: tensor<?x3xf32, #dhlo.shape<["m", "3"]>>, %arg5: tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, %arg6: tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>, %arg7: tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> (tensor<4x3xf32> {dhlo.argument = 0 : i64}, tensor<4x3xf32> {dhlo.state = "c"}, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>, tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) {
    "dhlo.stage"(%arg0) {free = [], input = 0 : i64} : (tensor<4x3xf32>) -> ()
    "dhlo.stage"(%arg3) {free = [1, 2], input = 3 : i64} : (tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>) -> ()
    "dhlo.stride"(%arg3) {dim = 1 : i64, symbol = "stride3_1"} : (tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>) -> ()
    "dhlo.stride"(%arg3) {dim = 2 : i64, symbol = "stride3_2"} : (tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>) -> ()
    "dhlo.stage"(%arg4) {free = [0, 1], input = 4 : i64} : (tensor<?x3xf32, #dhlo.shape<["m", "3"]>>) -> ()
    "dhlo.stride"(%arg4) {dim = 0 : i64, symbol = "stride4_0"} : (tensor<?x3xf32, #dhlo.shape<["m", "3"]>>) -> ()
    "dhlo.stride"(%arg4) {dim = 1 : i64, symbol = "stride4_1"} : (tensor<?x3xf32, #dhlo.shape<["m", "3"]>>) -> ()
    "dhlo.stage"(%arg5) {free = [0, 1, 2], input = 5 : i64} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> ()
    "dhlo.stride"(%arg5) {dim = 0 : i64, symbol = "stride5_0"} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> ()
    "dhlo.stride"(%arg5) {dim = 1 : i64, symbol = "stride5_1"} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> ()
    "dhlo.stride"(%arg5) {dim = 2 : i64, symbol = "stride5_2"} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> ()
    "dhlo.stage"(%arg6) {free = [0, 1, 2], input = 6 : i64} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    "dhlo.stride"(%arg6) {dim = 0 : i64, symbol = "stride6_0"} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    "dhlo.stride"(%arg6) {dim = 1 : i64, symbol = "stride6_1"} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    "dhlo.stride"(%arg6) {dim = 2 : i64, symbol = "stride6_2"} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    "dhlo.stage"(%arg7) {free = [], input = 7 : i64} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    %0 = "dhlo.state"() {name_ = "c"} : () -> tensor<4x3xf32>
    %1 = "dhlo.add"(%arg0, %0) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %2 = "dhlo.neg"(%1) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %3 = "dhlo.neg"(%arg1) : (tensor<f32>) -> tensor<f32>
    %4 = "dhlo.group"() ({
      %6 = "dhlo.reshape"(%arg3) : (tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>) -> tensor<?x3xf32, #dhlo.shape<["2*n", "3"]>>
      %7 = "dhlo.transpose"(%arg4) {perm = [1, 0]} : (tensor<?x3xf32, #dhlo.shape<["m", "3"]>>) -> tensor<3x?xf32, #dhlo.shape<["3", "m"]>>
      %8 = "dhlo.matmul"(%6, %7) : (tensor<?x3xf32, #dhlo.shape<["2*n", "3"]>>, tensor<3x?xf32, #dhlo.shape<["3", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>
      "dhlo.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>) -> ()
    }) {anchor = "matmul", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>
    %5 = "dhlo.group"() ({
      %6 = "dhlo.transpose"(%arg5) {perm = [0, 2, 1, 3]} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
      %7 = "dhlo.attention"(%6, %arg6, %arg7) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, past = "0", scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>, tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>, tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
      %8 = "dhlo.add"(%7, %arg7) : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>, tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
      "dhlo.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>) -> ()
    }) {anchor = "attention", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
    "dhlo.update_argument"(%1) {input = 0 : i64} : (tensor<4x3xf32>) -> ()
    "dhlo.update_state"(%2) {name_ = "c"} : (tensor<4x3xf32>) -> ()
    return %1, %2, %3, %4, %5 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<f32>, tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>, tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
  }
}
