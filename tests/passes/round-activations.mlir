!x = tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
!y = tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
!i = tensor<2xi32>
// Rows are rounded where they meet integers in groups of 16, as wide as a matrix of experts, too; not where they meet floats.
module attributes {dhlo.activations = "int8"} {
  func.func @main(%x: !x, %o: !i) -> (!y, !y, !y) {
    %q = "dhlo.weight"() {name_ = "codes"} : () -> tensor<32x64xi8>
    %s = "dhlo.weight"() {name_ = "scale"} : () -> tensor<32x4xbf16>
    %w = "dhlo.dequantize"(%q, %s) {code = "i4", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x4xbf16>) -> tensor<32x64xf32>
    %t = "dhlo.transpose"(%w) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %a = "dhlo.matmul"(%x, %t) : (!x, tensor<64x32xf32>) -> !y
    %e = "dhlo.weight"() {name_ = "experts"} : () -> tensor<2x64x32xi8>
    %r = "dhlo.dequantize"(%e) {code = "i8", dtype = "f32"} : (tensor<2x64x32xi8>) -> tensor<2x64x32xf32>
    %b = "dhlo.grouped_matmul"(%x, %r, %o) : (!x, tensor<2x64x32xf32>, !i) -> !y
    %f = "dhlo.weight"() {name_ = "floats"} : () -> tensor<64x32xui8>
    %g = "dhlo.dequantize"(%f) {code = "f8e5m2", dtype = "f32"} : (tensor<64x32xui8>) -> tensor<64x32xf32>
    %c = "dhlo.matmul"(%x, %g) : (!x, tensor<64x32xf32>) -> !y
    return %a, %b, %c : !y, !y, !y
  }
}
