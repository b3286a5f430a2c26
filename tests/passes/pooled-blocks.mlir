!x = tensor<?x3x?x?xf32, #dhlo.shape<["b", "3", "h + 6", "w + 6"]>>
!y = tensor<?x3x?x?xf32, #dhlo.shape<["b", "3", "(floordiv(h + 2, 4)) + 1", "(floordiv(w, 3)) + 2"]>>
!h = tensor<?x3x?xbf16, #dhlo.shape<["b", "3", "5*n"]>>
!g = tensor<?x3x?xbf16, #dhlo.shape<["b", "3", "n"]>>
!o = tensor<?x3x1x1xf32, #dhlo.shape<["b", "3", "1", "1"]>>
!q = tensor<?x3x?x?xf32, #dhlo.shape<["b", "3", "(floordiv(h, 2)) + 3", "(floordiv(w, 2)) + 3"]>>
!s = tensor<?x3x?x?xf32, #dhlo.shape<["b", "3", "h + 4", "w + 4"]>>
!r = tensor<?x3x2x2xf32, #dhlo.shape<["b", "3", "2", "2"]>>
module {
  // Windows side by side, with a divisor, of bf16; all of an image. Not maxima, two columns, what overlaps, or several of an image.
  func.func @main(%x: !x, %h: !h) -> (!y, !g, !o, !o, !q, !s, !r) {
    %a = "dhlo.pool"(%x) {how = "avg", window = [4, 3], stride = [4, 3], padding = [0, 0], dilation = [1, 1], count_pad = true, divisor = 7} : (!x) -> !y
    %b = "dhlo.pool"(%h) {how = "avg", window = [5], stride = [5], padding = [0], dilation = [1], count_pad = true, divisor = 0} : (!h) -> !g
    %c = "dhlo.adaptive_pool"(%x) {how = "avg", spatial = 2} : (!x) -> !o
    %d = "dhlo.adaptive_pool"(%x) {how = "max", spatial = 2} : (!x) -> !o
    %e = "dhlo.pool"(%x) {how = "avg", window = [2, 2], stride = [2, 2], padding = [0, 0], dilation = [1, 1], count_pad = true, divisor = 0} : (!x) -> !q
    %f = "dhlo.pool"(%x) {how = "avg", window = [3, 3], stride = [1, 1], padding = [0, 0], dilation = [1, 1], count_pad = true, divisor = 0} : (!x) -> !s
    %g = "dhlo.adaptive_pool"(%x) {how = "avg", spatial = 2} : (!x) -> !r
    return %a, %b, %c, %d, %e, %f, %g : !y, !g, !o, !o, !q, !s, !r
  }
}
