!x = tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>
!t = tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
!h = tensor<?x3x?xf32, #dhlo.shape<["b", "3", "n"]>>
!p = tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n + 3"]>>
!m = tensor<?x6xf32, #dhlo.shape<["b", "6"]>>
!g = tensor<6x?xf32, #dhlo.shape<["6", "n"]>>
!c = tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
!y = tensor<?x12x6xf32, #dhlo.shape<["b", "12", "6"]>>
!yt = tensor<?x6x12xf32, #dhlo.shape<["b", "6", "12"]>>
!i = tensor<?x6x3x4xf32, #dhlo.shape<["b", "6", "3", "4"]>>
!r = tensor<?x6x3xf32, #dhlo.shape<["b", "6", "3"]>>
module {
  // A slice, padding, a reversal and sums of tokens' channels; an image of tokens, of which the largest in a row is wanted; not a
  // norm, whose reductions stay beside each other, or where rows stay rows.
  func.func @main(%x: !x, %y: !y) -> (!h, !p, !t, !m, !g, !r, !t, !c) {
    %t = "dhlo.transpose"(%x) {perm = [0, 2, 1]} : (!x) -> !t
    %s = "dhlo.slice"(%t) {starts = ["0", "1", "0"], steps = [1, 2, 1]} : (!t) -> !h
    %p = "dhlo.pad"(%t) {low = ["0", "0", "1"], value = 0.0 : f64} : (!t) -> !p
    %r = "dhlo.reverse"(%t) {dims = [2]} : (!t) -> !t
    %t2 = "dhlo.transpose"(%x) {perm = [0, 2, 1]} : (!x) -> !t
    %zero = "dhlo.full"() {value = "0.0"} : () -> !t
    %relu = "dhlo.maximum"(%t2, %zero) : (!t, !t) -> !t
    %m = "dhlo.reduce"(%relu) {dims = [2], how = "sum"} : (!t) -> !m
    %t3 = "dhlo.transpose"(%x) {perm = [2, 0, 1]} : (!x) -> tensor<6x?x?xf32, #dhlo.shape<["6", "b", "n"]>>
    %g = "dhlo.reduce"(%t3) {dims = [1], how = "max"} : (tensor<6x?x?xf32, #dhlo.shape<["6", "b", "n"]>>) -> !g
    %yt = "dhlo.transpose"(%y) {perm = [0, 2, 1]} : (!y) -> !yt
    %i = "dhlo.reshape"(%yt) : (!yt) -> !i
    %top = "dhlo.reduce"(%i) {dims = [3], how = "max"} : (!i) -> !r
    %t4 = "dhlo.transpose"(%x) {perm = [0, 2, 1]} : (!x) -> !t
    %e = "dhlo.exp"(%t4) : (!t) -> !t
    %sum = "dhlo.reduce"(%e) {dims = [1], how = "sum"} : (!t) -> !c
    %wide = "dhlo.broadcast"(%sum) {dims = [0, 2]} : (!c) -> !t
    %n = "dhlo.div"(%e, %wide) : (!t, !t) -> !t
    %rows = "dhlo.transpose"(%x) {perm = [1, 0, 2]} : (!x) -> tensor<?x?x6xf32, #dhlo.shape<["n", "b", "6"]>>
    %all = "dhlo.reduce"(%rows) {dims = [2], how = "sum"} : (tensor<?x?x6xf32, #dhlo.shape<["n", "b", "6"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "b"]>>
    %back = "dhlo.transpose"(%all) {perm = [1, 0]} : (tensor<?x?xf32, #dhlo.shape<["n", "b"]>>) -> !c
    return %s, %p, %r, %m, %g, %top, %n, %back : !h, !p, !t, !m, !g, !r, !t, !c
  }
}
