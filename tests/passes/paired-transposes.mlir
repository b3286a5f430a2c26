!x = tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
!y = tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
!flat = tensor<?x24x?xf32, #dhlo.shape<["n", "24", "h*w"]>>
!t = tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>
!across = tensor<?x?x24xf32, #dhlo.shape<["h*w", "n", "24"]>>
!rows = tensor<?x?x?x24xf32, #dhlo.shape<["h", "n", "w", "24"]>>
module {
  // What is turned back, with dims that become one, or in another order; not what ends across, or is read elsewhere, too.
  func.func @main(%x: !x, %bias: tensor<24xf32>) -> (!t, !rows, !y, !x, !y) {
    %y = "dhlo.transpose"(%x) {perm = [0, 3, 1, 2]} : (!x) -> !y
    %wide = "dhlo.broadcast"(%bias) {dims = [1]} : (tensor<24xf32>) -> !y
    %a = "dhlo.add"(%y, %wide) : (!y, !y) -> !y
    %flat = "dhlo.reshape"(%a) : (!y) -> !flat
    %two = "dhlo.full"() {value = "2.0"} : () -> !flat
    %b = "dhlo.mul"(%two, %flat) : (!flat, !flat) -> !flat
    %back = "dhlo.transpose"(%b) {perm = [0, 2, 1]} : (!flat) -> !t
    %c = "dhlo.exp"(%y) : (!y) -> !y
    %rows = "dhlo.transpose"(%c) {perm = [2, 0, 3, 1]} : (!y) -> !rows
    %d = "dhlo.abs"(%y) : (!y) -> !y
    %e = "dhlo.neg"(%y) : (!y) -> !y
    %also = "dhlo.transpose"(%e) {perm = [0, 2, 3, 1]} : (!y) -> !x
    return %back, %rows, %d, %also, %e : !t, !rows, !y, !x, !y
  }
}
