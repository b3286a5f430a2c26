module attributes {dhlo.symbols = {n = [1, 6]}} {
  func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<?xf32, #dhlo.shape<["n"]>>, %arg2: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<8xf32> {dhlo.argument = 0 : i64}, tensor<f32>) {
    %0 = "dhlo.group"() ({
      %2 = "dhlo.reduce"(%arg0) {dims = [0], how = "sum"} : (tensor<8xf32>) -> tensor<f32>
      "dhlo.yield"(%2) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<f32>) -> ()
    }) {anchor = "reduction", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<f32>
    %1 = "dhlo.group"() ({
      %2 = "dhlo.scatter"(%arg0, %arg2, %arg1) {at = 0 : i64, dims = [0], how = "set", wrap = true} : (tensor<8xf32>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<8xf32>
      "dhlo.yield"(%2) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8xf32>) -> ()
    }) {anchor = "opaque", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<8xf32>
    return %1, %0 : tensor<8xf32>, tensor<f32>
  }
}
