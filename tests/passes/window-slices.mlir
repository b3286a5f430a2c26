!x = tensor<?x?x?x24xf32, #dhlo.shape<["n", "h + 2", "w + 2", "24"]>>
!y = tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h + 2", "w + 2"]>>
!half = tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "(floordiv(h, 2)) + 2", "(floordiv(w, 2)) + 2"]>>
!t = tensor<?x64x16xbf16, #dhlo.shape<["n", "64", "16"]>>
!u = tensor<?x16x64xbf16, #dhlo.shape<["n", "16", "64"]>>
!image = tensor<?x16x8x8xbf16, #dhlo.shape<["n", "16", "8", "8"]>>
!small = tensor<?x16x4x4xbf16, #dhlo.shape<["n", "16", "4", "4"]>>
!rgb = tensor<?x9x9x3xf32, #dhlo.shape<["n", "9", "9", "3"]>>
!planes = tensor<?x3x9x9xf32, #dhlo.shape<["n", "3", "9", "9"]>>
!thirds = tensor<?x3x3x3xf32, #dhlo.shape<["n", "3", "3", "3"]>>
module {
  // Maxima of windows that reach beyond the image are of what is padded; averages of tokens seen as an image are rounded once. Few
  // channels don't fill vectors, and counts of what is inside differ.
  func.func @main(%x: !x, %t: !t, %p: !rgb) -> (!half, !small, !thirds, !y) {
    %y = "dhlo.transpose"(%x) {perm = [0, 3, 1, 2]} : (!x) -> !y
    %max = "dhlo.pool"(%y) {how = "max", window = [2, 2], stride = [2, 2], padding = [1, 1], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!y) -> !half
    %u = "dhlo.transpose"(%t) {perm = [0, 2, 1]} : (!t) -> !u
    %image = "dhlo.reshape"(%u) : (!u) -> !image
    %avg = "dhlo.pool"(%image) {how = "avg", window = [2, 2], stride = [2, 2], padding = [0, 0], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!image) -> !small
    %planes = "dhlo.transpose"(%p) {perm = [0, 3, 1, 2]} : (!rgb) -> !planes
    %few = "dhlo.pool"(%planes) {how = "max", window = [3, 3], stride = [3, 3], padding = [0, 0], dilation = [1, 1], count_pad = true, divisor = 0 : i64} : (!planes) -> !thirds
    %inside = "dhlo.pool"(%y) {how = "avg", window = [3, 3], stride = [1, 1], padding = [1, 1], dilation = [1, 1], count_pad = false, divisor = 0 : i64} : (!y) -> !y
    return %max, %avg, %few, %inside : !half, !small, !thirds, !y
  }
}
