!b = tensor<?x2x9x5xui8, #dhlo.shape<["n", "2", "9", "5"]>>
!c = tensor<?x2x9x5xi8, #dhlo.shape<["n", "2", "9", "5"]>>
!f = tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
!p = tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
!q = tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
!g = tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
!u = tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
module {
  // The order of bytes is that of numbers where the scale is above 0. Averages aren't of bytes, and windows with gaps may have no
  // point inside. Of what is quantised again %k is what it was; %o has another zero point, %v another scale, %u less wide bounds.
  func.func @main(%x: !b, %y: !c, %codes: !u) -> (!p, !p, !p, !p, !q, !u, !u, !u, !u) {
    %zero = "dhlo.full"() {value = "7.0"} : () -> !f
    %scale = "dhlo.full"() {value = "0.0234002"} : () -> !f
    %below = "dhlo.full"() {value = "-0.5"} : () -> !f
    %a = "dhlo.convert"(%x) : (!b) -> !f
    %b = "dhlo.sub"(%a, %zero) : (!f, !f) -> !f
    %c = "dhlo.mul"(%b, %scale) : (!f, !f) -> !f
    %p = "dhlo.pool"(%c) {how = "max", window = [3, 3], stride = [2, 2], padding = [1, 1], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!f) -> !p
    %d = "dhlo.convert"(%y) : (!c) -> !f
    %e = "dhlo.mul"(%d, %scale) : (!f, !f) -> !f
    %q = "dhlo.pool"(%e) {how = "max", window = [3, 3], stride = [2, 2], padding = [1, 1], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!f) -> !p
    %g = "dhlo.mul"(%d, %below) : (!f, !f) -> !f
    %r = "dhlo.pool"(%g) {how = "max", window = [3, 3], stride = [2, 2], padding = [1, 1], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!f) -> !p
    %s = "dhlo.pool"(%e) {how = "avg", window = [3, 3], stride = [2, 2], padding = [1, 1], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!f) -> !p
    %t = "dhlo.pool"(%e) {how = "max", window = [2, 2], stride = [2, 2], padding = [1, 1], dilation = [2, 2], count_pad = true, divisor = 0 : i64} : (!f) -> !q

    %point = "dhlo.full"() {value = "128.0"} : () -> !g
    %least = "dhlo.full"() {value = "0.0"} : () -> !g
    %most = "dhlo.full"() {value = "255.0"} : () -> !g
    %small = "dhlo.full"() {value = "0.025"} : () -> !g
    %large = "dhlo.full"() {value = "40.0"} : () -> !g
    %other = "dhlo.full"() {value = "40.1"} : () -> !g
    %w = "dhlo.convert"(%codes) : (!u) -> !g
    %ws = "dhlo.sub"(%w, %point) : (!g, !g) -> !g
    %wd = "dhlo.mul"(%ws, %small) : (!g, !g) -> !g
    %wm = "dhlo.mul"(%wd, %large) : (!g, !g) -> !g
    %wn = "dhlo.round"(%wm) : (!g) -> !g
    %wp = "dhlo.add"(%wn, %point) : (!g, !g) -> !g
    %wl = "dhlo.maximum"(%wp, %least) : (!g, !g) -> !g
    %wh = "dhlo.minimum"(%wl, %most) : (!g, !g) -> !g
    %k = "dhlo.convert"(%wh) : (!g) -> !u
    %ol = "dhlo.maximum"(%wn, %least) : (!g, !g) -> !g
    %oh = "dhlo.minimum"(%ol, %most) : (!g, !g) -> !g
    %o = "dhlo.convert"(%oh) : (!g) -> !u
    %vm = "dhlo.mul"(%wd, %other) : (!g, !g) -> !g
    %vn = "dhlo.round"(%vm) : (!g) -> !g
    %vp = "dhlo.add"(%vn, %point) : (!g, !g) -> !g
    %vl = "dhlo.maximum"(%vp, %least) : (!g, !g) -> !g
    %vh = "dhlo.minimum"(%vl, %most) : (!g, !g) -> !g
    %v = "dhlo.convert"(%vh) : (!g) -> !u
    %ul = "dhlo.maximum"(%wp, %point) : (!g, !g) -> !g
    %uh = "dhlo.minimum"(%ul, %most) : (!g, !g) -> !g
    %u = "dhlo.convert"(%uh) : (!g) -> !u
    return %p, %q, %r, %s, %t, %k, %o, %v, %u : !p, !p, !p, !p, !q, !u, !u, !u, !u
  }
}
