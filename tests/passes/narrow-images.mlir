!b = tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
!f = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
!h = tensor<?x4x?x?xf16, #dhlo.shape<["n", "4", "m", "m"]>>
!w = tensor<4x4x1x1xf32>
module {
  // The larger of a number of bf16 and 0 is one; so is the opposite of one of f16. A sum isn't, and the last image is one already.
  func.func @main(%in: !f, %other: !f, %w: !w) -> (!f, !f, !f, !f, !f) {
    %zero = "dhlo.full"() {value = "0.0"} : () -> !f
    %x = "dhlo.convert"(%in) : (!f) -> !b
    %xf = "dhlo.convert"(%x) : (!b) -> !f
    %r = "dhlo.maximum"(%xf, %zero) : (!f, !f) -> !f
    %y = "dhlo.convert"(%other) : (!f) -> !h
    %yf = "dhlo.convert"(%y) : (!h) -> !f
    %o = "dhlo.neg"(%yf) : (!f) -> !f
    %s = "dhlo.add"(%r, %r) : (!f, !f) -> !f
    %a = "dhlo.conv"(%r, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %c = "dhlo.conv"(%o, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %d = "dhlo.conv"(%s, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %e = "dhlo.conv"(%xf, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    return %a, %c, %d, %e, %r : !f, !f, !f, !f, !f
  }
}
