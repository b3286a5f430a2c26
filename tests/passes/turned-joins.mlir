!x = tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>
!t = tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
!a = tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>
!c = tensor<?x?x?x10xf32, #dhlo.shape<["b", "h", "w", "10"]>>
!g = tensor<?x2xf32, #dhlo.shape<["w", "2"]>>
!h = tensor<?x?xf32, #dhlo.shape<["h", "w"]>>
!i = tensor<?x?x?x1xf32, #dhlo.shape<["b", "h", "w", "1"]>>
!j = tensor<?x?x?x14xf32, #dhlo.shape<["b", "h", "w", "14"]>>
!s = tensor<12xf32>
!o = tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>
!p = tensor<?x?x?x4xf32, #dhlo.shape<["b", "h", "w", "4"]>>
module {
  // A head's columns, some of which are moved by their places; then positions and numbers beside them, and a vector of weights.
  // Not what is read elsewhere, too, what doesn't lie across, or in two ways, nor few columns.
  func.func @main(%x: !x, %g: !g, %y: !t, %s: !s) -> (!t, !j, !o, !o, !o, !p, !t) {
    %t = "dhlo.transpose"(%x) {perm = [0, 2, 3, 1]} : (!x) -> !t
    %a = "dhlo.slice"(%t) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (!t) -> !a
    %b = "dhlo.broadcast"(%g) {dims = [2, 3]} : (!g) -> !a
    %d = "dhlo.add"(%a, %b) : (!a, !a) -> !a
    %c = "dhlo.slice"(%t) {starts = ["0", "0", "0", "2"], steps = [1, 1, 1, 1]} : (!t) -> !c
    %e = "dhlo.sigmoid"(%c) : (!c) -> !c
    %first = "dhlo.concat"(%d, %e) {dim = 3 : i64} : (!a, !c) -> !t
    %n = "dhlo.iota"() {dim = 2 : i64, start = "1", step = "2"} : () -> !i
    %m = "dhlo.full"() {value = "3.0"} : () -> !i
    %w = "dhlo.broadcast"(%s) {dims = [3]} : (!s) -> !t
    %v = "dhlo.mul"(%t, %w) : (!t, !t) -> !t
    %second = "dhlo.concat"(%n, %v, %m) {dim = 3 : i64} : (!i, !t, !i) -> !j
    %u = "dhlo.sigmoid"(%t) : (!t) -> !t
    %third = "dhlo.concat"(%u, %t) {dim = 3 : i64} : (!t, !t) -> !o
    %fourth = "dhlo.concat"(%t, %y) {dim = 3 : i64} : (!t, !t) -> !o
    %z = "dhlo.transpose"(%x) {perm = [0, 2, 3, 1]} : (!x) -> !t
    %k = "dhlo.transpose"(%y) {perm = [0, 1, 2, 3]} : (!t) -> !t
    %fifth = "dhlo.concat"(%z, %k) {dim = 3 : i64} : (!t, !t) -> !o
    %l = "dhlo.exp"(%a) : (!a) -> !a
    %sixth = "dhlo.concat"(%l, %a) {dim = 3 : i64} : (!a, !a) -> !p
    return %first, %second, %third, %fourth, %fifth, %sixth, %u : !t, !j, !o, !o, !o, !p, !t
  }
}
