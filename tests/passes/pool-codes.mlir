!b = tensor<?x2x9x5xui8, #dhlo.shape<["n", "2", "9", "5"]>>
!c = tensor<?x2x9x5xi8, #dhlo.shape<["n", "2", "9", "5"]>>
!f = tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
!p = tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
!q = tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
module {
  // The order of bytes is that of numbers where the scale is above 0. Averages aren't of bytes, and windows with gaps may have no
  // point inside.
  func.func @main(%x: !b, %y: !c) -> (!p, !p, !p, !p, !q) {
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
    return %p, %q, %r, %s, %t : !p, !p, !p, !p, !q
  }
}
