!f = tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
!i = tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
!u = tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
!s = tensor<?x4xi8, #dhlo.shape<["n", "4"]>>
module {
  // Bounds of a relu6 are those of codes; a number above 0 in front of them makes bounds of what it multiplies. Nothing is known of
  // %in, whose NaN would become another code with a zero point than without, and the fifth bound isn't an integer. What is multiplied by
  // less fits an i32 in any case, and is bounded as one.
  func.func @main(%in: !f, %sums: !i) -> (!u, !u, !s, !u, !u, !u, !s) {
    %zero = "dhlo.full"() {value = "0.0"} : () -> !f
    %six = "dhlo.full"() {value = "6.0"} : () -> !f
    %most = "dhlo.full"() {value = "255.0"} : () -> !f
    %scale = "dhlo.full"() {value = "40.0"} : () -> !f
    %r = "dhlo.maximum"(%in, %zero) : (!f, !f) -> !f
    %r6 = "dhlo.minimum"(%r, %six) : (!f, !f) -> !f
    %m = "dhlo.mul"(%r6, %scale) : (!f, !f) -> !f
    %n = "dhlo.round"(%m) : (!f) -> !f
    %p = "dhlo.add"(%n, %zero) : (!f, !f) -> !f
    %l = "dhlo.maximum"(%p, %zero) : (!f, !f) -> !f
    %h = "dhlo.minimum"(%l, %most) : (!f, !f) -> !f
    %a = "dhlo.convert"(%h) : (!f) -> !u

    %point = "dhlo.full"() {value = "128.0"} : () -> !f
    %x = "dhlo.convert"(%sums) : (!i) -> !f
    %xm = "dhlo.mul"(%x, %scale) : (!f, !f) -> !f
    %xn = "dhlo.round"(%xm) : (!f) -> !f
    %xp = "dhlo.add"(%xn, %point) : (!f, !f) -> !f
    %xl = "dhlo.maximum"(%xp, %zero) : (!f, !f) -> !f
    %xh = "dhlo.minimum"(%xl, %most) : (!f, !f) -> !f
    %b = "dhlo.convert"(%xh) : (!f) -> !u

    %low = "dhlo.full"() {value = "-128.0"} : () -> !f
    %high = "dhlo.full"() {value = "127.0"} : () -> !f
    %yh = "dhlo.minimum"(%xn, %high) : (!f, !f) -> !f
    %yl = "dhlo.maximum"(%yh, %low) : (!f, !f) -> !f
    %c = "dhlo.convert"(%yl) : (!f) -> !s

    %zm = "dhlo.mul"(%in, %scale) : (!f, !f) -> !f
    %zn = "dhlo.round"(%zm) : (!f) -> !f
    %zp = "dhlo.add"(%zn, %point) : (!f, !f) -> !f
    %zl = "dhlo.maximum"(%zp, %zero) : (!f, !f) -> !f
    %zh = "dhlo.minimum"(%zl, %most) : (!f, !f) -> !f
    %d = "dhlo.convert"(%zh) : (!f) -> !u

    %half = "dhlo.full"() {value = "254.5"} : () -> !f
    %hl = "dhlo.maximum"(%n, %zero) : (!f, !f) -> !f
    %hh = "dhlo.minimum"(%hl, %half) : (!f, !f) -> !f
    %e = "dhlo.convert"(%hh) : (!f) -> !u

    %less = "dhlo.full"() {value = "0.1"} : () -> !f
    %w = "dhlo.mul"(%x, %less) : (!f, !f) -> !f
    %wr = "dhlo.maximum"(%w, %zero) : (!f, !f) -> !f
    %w6 = "dhlo.minimum"(%wr, %six) : (!f, !f) -> !f
    %wm = "dhlo.mul"(%w6, %less) : (!f, !f) -> !f
    %wn = "dhlo.round"(%wm) : (!f) -> !f
    %wp = "dhlo.add"(%wn, %point) : (!f, !f) -> !f
    %wl = "dhlo.maximum"(%wp, %zero) : (!f, !f) -> !f
    %wh = "dhlo.minimum"(%wl, %most) : (!f, !f) -> !f
    %f = "dhlo.convert"(%wh) : (!f) -> !u

    %vn = "dhlo.round"(%w) : (!f) -> !f
    %vh = "dhlo.minimum"(%vn, %high) : (!f, !f) -> !f
    %vl = "dhlo.maximum"(%vh, %low) : (!f, !f) -> !f
    %g = "dhlo.convert"(%vl) : (!f) -> !s
    return %a, %b, %c, %d, %e, %f, %g : !u, !u, !s, !u, !u, !u, !s
  }
}
