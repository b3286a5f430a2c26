!x = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>
!y = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
!t = tensor<?x64xf32, #dhlo.shape<["k", "64"]>>
!u = tensor<?x32xf32, #dhlo.shape<["k", "32"]>>
module {
  // The scale of a normalisation moves into the convolution's weights, and everything made of weights alone is computed now.
  // Experts are transposed now, as grouped products take matrices as they lie; others are read in place.
  func.func @main(%x: !x, %t: !t, %o: tensor<2xi32>) -> (!y, !u, !u) {
    %w = "dhlo.weight"() {name_ = "conv"} : () -> tensor<4x3x3x3xf32>
    %gain = "dhlo.weight"() {name_ = "gain"} : () -> tensor<4xf32>
    %var = "dhlo.weight"() {name_ = "var"} : () -> tensor<4xf32>
    %eps = "dhlo.full"() {value = "0.001"} : () -> tensor<4xf32>
    %a = "dhlo.abs"(%var) : (tensor<4xf32>) -> tensor<4xf32>
    %v = "dhlo.add"(%a, %eps) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %r = "dhlo.rsqrt"(%v) : (tensor<4xf32>) -> tensor<4xf32>
    %s = "dhlo.mul"(%r, %gain) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %c = "dhlo.conv"(%x, %w) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!x, tensor<4x3x3x3xf32>) -> !y
    %wide = "dhlo.broadcast"(%s) {dims = [1]} : (tensor<4xf32>) -> !y
    %y = "dhlo.mul"(%c, %wide) : (!y, !y) -> !y
    %e = "dhlo.weight"() {name_ = "experts"} : () -> tensor<2x32x64xf32>
    %p = "dhlo.transpose"(%e) {perm = [0, 2, 1]} : (tensor<2x32x64xf32>) -> tensor<2x64x32xf32>
    %g = "dhlo.grouped_matmul"(%t, %p, %o) : (!t, tensor<2x64x32xf32>, tensor<2xi32>) -> !u
    %l = "dhlo.weight"() {name_ = "linear"} : () -> tensor<32x64xf32>
    %q = "dhlo.transpose"(%l) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %m = "dhlo.matmul"(%t, %q) : (!t, tensor<64x32xf32>) -> !u
    return %y, %g, %m : !y, !u, !u
  }
}
