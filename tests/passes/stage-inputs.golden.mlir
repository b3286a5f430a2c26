module {
  func.func @main(%arg0: tensor<4x3xf32>, %arg1: tensor<f32>, %arg2: tensor<2x?xf32, #dhlo.shape<["2", "cap2"]>> {dhlo.filled = "s0", dhlo.grows = 1 : i64}) -> (tensor<4x3xf32> {dhlo.argument = 0 : i64}, tensor<4x3xf32> {dhlo.state = "c"}, tensor<f32>) {
    "dhlo.stage"(%arg0) {input = 0 : i64} : (tensor<4x3xf32>) -> ()
    %0 = "dhlo.state"() {name_ = "c"} : () -> tensor<4x3xf32>
    %1 = "dhlo.add"(%arg0, %0) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %2 = "dhlo.neg"(%1) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %3 = "dhlo.neg"(%arg1) : (tensor<f32>) -> tensor<f32>
    "dhlo.update_argument"(%1) {input = 0 : i64} : (tensor<4x3xf32>) -> ()
    "dhlo.update_state"(%2) {name_ = "c"} : (tensor<4x3xf32>) -> ()
    return %1, %2, %3 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<f32>
  }
}
