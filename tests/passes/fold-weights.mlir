!x = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "h + 2", "w + 2"]>>
!y = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "h", "w"]>>
!t = tensor<?x64xf32, #dhlo.shape<["k", "64"]>>
!u = tensor<?x32xf32, #dhlo.shape<["k", "32"]>>
module {
  // The scale of a normalisation moves into the convolution's weights, and everything made of weights alone is computed now.
  // So are the indices of a lookup that take many steps: what reads few stays computed.
  // Experts are transposed now, as grouped products take matrices as they lie; others are read in place.
  func.func @main(%x: !x, %t: !t, %o: tensor<2xi32>) -> (!y, !u, !u, tensor<16x64xf32>, tensor<8x64xf32>) {
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
    %i = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<8xi64>
    %two = "dhlo.full"() {value = "2"} : () -> tensor<8xi64>
    %j = "dhlo.mul"(%i, %two) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %back = "dhlo.sub"(%j, %i) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %odd = "dhlo.add"(%back, %two) : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %both = "dhlo.concat"(%j, %odd) {dim = 0 : i64} : (tensor<8xi64>, tensor<8xi64>) -> tensor<16xi64>
    %many = "dhlo.take"(%l, %both) {at = 0 : i64, dims = [0], wrap = true} : (tensor<32x64xf32>, tensor<16xi64>) -> tensor<16x64xf32>
    %few = "dhlo.take"(%l, %j) {at = 0 : i64, dims = [0], wrap = true} : (tensor<32x64xf32>, tensor<8xi64>) -> tensor<8x64xf32>
    return %y, %g, %m, %many, %few : !y, !u, !u, tensor<16x64xf32>, tensor<8x64xf32>
  }
}
