!b = tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
!f = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
!w = tensor<4x4x1x1xf32>
!c = tensor<4xf32>
module {
  // The first two sums, one of them with a bias, go to norms as they are. The others stay rounded: of an image that wasn't narrow,
  // read by something else as well, and multiplied by what isn't a channel's. A residual of bf16 is added to sums of f32, and the bound
  // still reads that rounded, as others rely on it; SiLU reads the norm's result.
  func.func @main(%narrow: !b, %in: !f, %other: !f) -> (!f, !f, !f, !f, !b, !f, !f, !b) {
    %v = "dhlo.weight"() {name_ = "v"} : () -> tensor<4x4x1x1xbf16>
    %s = "dhlo.weight"() {name_ = "s"} : () -> !c
    %t = "dhlo.weight"() {name_ = "t"} : () -> !c
    %w = "dhlo.convert"(%v) : (tensor<4x4x1x1xbf16>) -> !w
    %x = "dhlo.convert"(%narrow) : (!b) -> !f
    %scale = "dhlo.broadcast"(%s) {dims = [1]} : (!c) -> !f
    %shift = "dhlo.broadcast"(%t) {dims = [1]} : (!c) -> !f
    %a = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %an = "dhlo.convert"(%a) : (!f) -> !b
    %af = "dhlo.convert"(%an) : (!b) -> !f
    %am = "dhlo.mul"(%af, %scale) : (!f, !f) -> !f
    %ar = "dhlo.add"(%am, %shift) : (!f, !f) -> !f
    %b0 = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %b = "dhlo.add"(%b0, %shift) : (!f, !f) -> !f
    %bn = "dhlo.convert"(%b) : (!f) -> !b
    %bf = "dhlo.convert"(%bn) : (!b) -> !f
    %br = "dhlo.mul"(%scale, %bf) : (!f, !f) -> !f
    %c = "dhlo.conv"(%in, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %cn = "dhlo.convert"(%c) : (!f) -> !b
    %cf = "dhlo.convert"(%cn) : (!b) -> !f
    %cr = "dhlo.mul"(%cf, %scale) : (!f, !f) -> !f
    %d = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %dn = "dhlo.convert"(%d) : (!f) -> !b
    %df = "dhlo.convert"(%dn) : (!b) -> !f
    %dr = "dhlo.mul"(%df, %scale) : (!f, !f) -> !f
    %e = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %en = "dhlo.convert"(%e) : (!f) -> !b
    %ef = "dhlo.convert"(%en) : (!b) -> !f
    %er = "dhlo.mul"(%ef, %other) : (!f, !f) -> !f
    %g = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %gn = "dhlo.convert"(%g) : (!f) -> !b
    %ga = "dhlo.add"(%gn, %narrow) : (!b, !b) -> !b
    %gf = "dhlo.convert"(%ga) : (!b) -> !f
    %zero = "dhlo.full"() {value = "0.0"} : () -> !f
    %gr = "dhlo.maximum"(%gf, %zero) : (!f, !f) -> !f
    %h = "dhlo.conv"(%x, %w) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (!f, !w) -> !f
    %hn = "dhlo.convert"(%h) : (!f) -> !b
    %hf = "dhlo.convert"(%hn) : (!b) -> !f
    %hm = "dhlo.mul"(%hf, %scale) : (!f, !f) -> !f
    %ha = "dhlo.add"(%hm, %shift) : (!f, !f) -> !f
    %hb = "dhlo.convert"(%ha) : (!f) -> !b
    %hx = "dhlo.convert"(%hb) : (!b) -> !f
    %hs = "dhlo.sigmoid_short"(%hx) : (!f) -> !f
    %hp = "dhlo.mul"(%hx, %hs) : (!f, !f) -> !f
    %hr = "dhlo.convert"(%hp) : (!f) -> !b
    return %ar, %br, %cr, %dr, %dn, %er, %gr, %hr : !f, !f, !f, !f, !b, !f, !f, !b
  }
}
