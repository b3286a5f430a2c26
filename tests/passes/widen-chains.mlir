!b = tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
!f = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
!n = tensor<4x4x1x1xbf16>
!w = tensor<4x4x1x1xf32>
!d = tensor<4x1x3x3xf32>
module {
  // Of bf16 are image and weights of the first group's first convolution; the second one's image isn't, whose result is rounded on purpose.
  func.func @main(%narrow: !b, %in: !f) -> (!f, !f) {
    %w = "dhlo.weight"() {name_ = "w"} : () -> !n
    %d = "dhlo.weight"() {name_ = "d"} : () -> !d
    %a = "dhlo.group"() ({
      %ax = "dhlo.convert"(%narrow) : (!b) -> !f
      %aw = "dhlo.convert"(%w) : (!n) -> !w
      %a0 = "dhlo.conv"(%ax, %aw) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
      %zero = "dhlo.full"() {value = "0.0"} : () -> !f
      %a1 = "dhlo.maximum"(%a0, %zero) : (!f, !f) -> !f
      %a2 = "dhlo.convert"(%a1) : (!f) -> !b
      %a3 = "dhlo.convert"(%a2) : (!b) -> !f
      %a4 = "dhlo.conv"(%a3, %d) {dilation = [1, 1], groups = 4 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (!f, !d) -> !f
      "dhlo.yield"(%a4) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!f) -> ()
    }) {anchor = "convolution", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> !f
    %b = "dhlo.group"() ({
      %bw = "dhlo.convert"(%w) : (!n) -> !w
      %b1 = "dhlo.conv"(%in, %bw) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
      %b2 = "dhlo.convert"(%b1) : (!f) -> !b
      %b3 = "dhlo.convert"(%b2) : (!b) -> !f
      %b4 = "dhlo.conv"(%b3, %d) {dilation = [1, 1], groups = 4 : i64, output_padding = [0, 0], padding = [1, 1], stride = [1, 1], transposed = false} : (!f, !d) -> !f
      "dhlo.yield"(%b4) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!f) -> ()
    }) {anchor = "convolution", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> !f
    return %a, %b : !f, !f
  }
}
