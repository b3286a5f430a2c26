!x = tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>
!y = tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
!m = tensor<?x?x2xi1, #dhlo.shape<["b", "n", "2"]>>
!z = tensor<?x?xi1, #dhlo.shape<["b", "n"]>>
!h = tensor<?x3xbf16, #dhlo.shape<["n", "3"]>>
!g = tensor<?xbf16, #dhlo.shape<["n"]>>
!w = tensor<?x5xf32, #dhlo.shape<["n", "5"]>>
!v = tensor<?xf32, #dhlo.shape<["n"]>>
!s = tensor<7x3xf32>
!t = tensor<7xf32>
module {
  // Three are added in order, two asked; not sums of bf16, of five, of few results, or along another dim.
  func.func @main(%x: !x, %m: !m, %h: !h, %w: !w, %s: !s) -> (!y, !z, !g, !v, !t, tensor<?x3xf32, #dhlo.shape<["b", "3"]>>) {
    %y = "dhlo.reduce"(%x) {dims = [2], how = "sum"} : (!x) -> !y
    %z = "dhlo.reduce"(%m) {dims = [2], how = "any"} : (!m) -> !z
    %g = "dhlo.reduce"(%h) {dims = [1], how = "sum"} : (!h) -> !g
    %v = "dhlo.reduce"(%w) {dims = [1], how = "max"} : (!w) -> !v
    %t = "dhlo.reduce"(%s) {dims = [1], how = "min"} : (!s) -> !t
    %u = "dhlo.reduce"(%x) {dims = [1], how = "sum"} : (!x) -> tensor<?x3xf32, #dhlo.shape<["b", "3"]>>
    return %y, %z, %g, %v, %t, %u : !y, !z, !g, !v, !t, tensor<?x3xf32, #dhlo.shape<["b", "3"]>>
  }
}
