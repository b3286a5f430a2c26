!x = tensor<?x3x?x?xui8, #dhlo.shape<["n", "3", "m", "m"]>>
!f = tensor<?x3x?x?xf32, #dhlo.shape<["n", "3", "m", "m"]>>
!y = tensor<?x8x?x?xf32, #dhlo.shape<["n", "8", "m", "m"]>>
module {
  // Bytes with a zero point, weights with a scale for each output channel, and with a zero point and one scale for all; the third
  // convolution's scales are those of input channels, which come before the sums.
  func.func @main(%x: !x) -> (!y, !y, !y) {
    %q = "dhlo.weight"() {name_ = "codes"} : () -> tensor<8x3x3x3xi8>
    %s = "dhlo.weight"() {name_ = "rows"} : () -> tensor<8x1x1x1xf32>
    %c = "dhlo.weight"() {name_ = "columns"} : () -> tensor<1x3x1x1xf32>
    %u = "dhlo.weight"() {name_ = "nibbles"} : () -> tensor<8x3x3x3xui8>
    %k = "dhlo.weight"() {name_ = "one"} : () -> tensor<1x1x1x1xf32>
    %z = "dhlo.full"() {value = "7.0"} : () -> !f
    %d = "dhlo.full"() {value = "0.125"} : () -> !f
    %xf = "dhlo.convert"(%x) : (!x) -> !f
    %xz = "dhlo.sub"(%xf, %z) : (!f, !f) -> !f
    %xs = "dhlo.mul"(%xz, %d) : (!f, !f) -> !f
    %w0 = "dhlo.dequantize"(%q, %s) {code = "i8", dtype = "f32"} : (tensor<8x3x3x3xi8>, tensor<8x1x1x1xf32>) -> tensor<8x3x3x3xf32>
    %w1 = "dhlo.dequantize"(%u, %k) {code = "ui4", dtype = "f32"} : (tensor<8x3x3x3xui8>, tensor<1x1x1x1xf32>) -> tensor<8x3x3x3xf32>
    %w2 = "dhlo.dequantize"(%q, %c) {code = "i8", dtype = "f32"} : (tensor<8x3x3x3xi8>, tensor<1x3x1x1xf32>) -> tensor<8x3x3x3xf32>
    %a = "dhlo.conv"(%xs, %w0) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (!f, tensor<8x3x3x3xf32>) -> !y
    %b = "dhlo.conv"(%xs, %w1) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (!f, tensor<8x3x3x3xf32>) -> !y
    %e = "dhlo.conv"(%xs, %w2) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (!f, tensor<8x3x3x3xf32>) -> !y
    return %a, %b, %e : !y, !y, !y
  }
}
