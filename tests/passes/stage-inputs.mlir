module {
  // An argument of rank 0 has no gaps, and a buffer that grows is dense; new content goes back at the end.
  func.func @main(%x: tensor<4x3xf32>, %p: tensor<f32>, %past: tensor<2x?xf32, #dhlo.shape<["2", "cap2"]>> {dhlo.grows = 1 : i64, dhlo.filled = "s0"}) -> (tensor<4x3xf32> {dhlo.argument = 0 : i64}, tensor<4x3xf32> {dhlo.state = "c"}, tensor<f32>) {
    %c = "dhlo.state"() {name_ = "c"} : () -> tensor<4x3xf32>
    %y = "dhlo.add"(%x, %c) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %z = "dhlo.neg"(%y) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %q = "dhlo.neg"(%p) : (tensor<f32>) -> tensor<f32>
    return %y, %z, %q : tensor<4x3xf32>, tensor<4x3xf32>, tensor<f32>
  }
}
