!x = tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
!y = tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
!i = tensor<?xi64, #dhlo.shape<["m"]>>
!l = tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
!im = tensor<?x16x8x8xf32, #dhlo.shape<["n", "16", "8", "8"]>>
!io = tensor<?x32x7x7xf32, #dhlo.shape<["n", "32", "7", "7"]>>
module {
  // A lookup computes what it reads from the codes, a convolution gets its constant back.
  func.func @main(%i: !i, %im: !im) -> (!l, !l, !io) {
    %q = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %s = "dhlo.weight"() {name_ = "bytes.scale"} : () -> tensor<32x4xbf16>
    %z = "dhlo.weight"() {name_ = "bytes.zero"} : () -> tensor<32x4xbf16>
    %w = "dhlo.dequantize"(%q, %s, %z) {code = "i8", dtype = "f32"} : (tensor<32x64xi8>, tensor<32x4xbf16>, tensor<32x4xbf16>) -> tensor<32x64xf32>
    %a = "dhlo.take"(%w, %i) {dims = [0], at = 0 : i64, wrap = false} : (tensor<32x64xf32>, !i) -> !l
    %p = "dhlo.weight"() {name_ = "floats"} : () -> tensor<32x64xui8>
    %f = "dhlo.dequantize"(%p) {code = "f4e2m1fn", dtype = "f32"} : (tensor<32x64xui8>) -> tensor<32x64xf32>
    %b = "dhlo.take"(%f, %i) {dims = [0], at = 0 : i64, wrap = false} : (tensor<32x64xf32>, !i) -> !l
    %v = "dhlo.reshape"(%w) : (tensor<32x64xf32>) -> tensor<32x16x2x2xf32>
    %c = "dhlo.conv"(%im, %v) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1 : i64} : (!im, tensor<32x16x2x2xf32>) -> !io
    return %a, %b, %c : !l, !l, !io
  }
}
