!x = tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
!y = tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
!flat = tensor<?x24x?xf32, #dhlo.shape<["n", "24", "h*w"]>>
!t = tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>
!across = tensor<?x?x24xf32, #dhlo.shape<["h*w", "n", "24"]>>
!rows = tensor<?x?x?x24xf32, #dhlo.shape<["h", "n", "w", "24"]>>
!tokens = tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>
!channels = tensor<?x48x7xf32, #dhlo.shape<["n", "48", "7"]>>
!hidden = tensor<?x48x5xf32, #dhlo.shape<["n", "48", "5"]>>
!long = tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>
!wide = tensor<?x?x7xf32, #dhlo.shape<["n", "w", "7"]>>
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
  // Products with constants, of as many rows as fill vectors, whatever forks between them; not of rows that nothing is known of.
  func.func @mixed(%x: !tokens, %long: !long) -> (!tokens, !long) {
    %w = "dhlo.weight"() {name_ = "w"} : () -> tensor<5x7xf32>
    %v = "dhlo.weight"() {name_ = "v"} : () -> tensor<7x5xf32>
    %square = "dhlo.weight"() {name_ = "square"} : () -> tensor<7x7xf32>
    %bias = "dhlo.weight"() {name_ = "bias"} : () -> tensor<5xf32>
    %wt = "dhlo.transpose"(%w) {perm = [1, 0]} : (tensor<5x7xf32>) -> tensor<7x5xf32>
    %vt = "dhlo.transpose"(%v) {perm = [1, 0]} : (tensor<7x5xf32>) -> tensor<5x7xf32>
    %channels = "dhlo.transpose"(%x) {perm = [0, 2, 1]} : (!tokens) -> !channels
    %a = "dhlo.matmul"(%channels, %wt) : (!channels, tensor<7x5xf32>) -> !hidden
    %biases = "dhlo.broadcast"(%bias) {dims = [2]} : (tensor<5xf32>) -> !hidden
    %b = "dhlo.add"(%a, %biases) : (!hidden, !hidden) -> !hidden
    %gate = "dhlo.sigmoid"(%b) : (!hidden) -> !hidden
    %c = "dhlo.mul"(%b, %gate) : (!hidden, !hidden) -> !hidden
    %d = "dhlo.matmul"(%c, %vt) : (!hidden, tensor<5x7xf32>) -> !channels
    %e = "dhlo.add"(%d, %channels) : (!channels, !channels) -> !channels
    %back = "dhlo.transpose"(%e) {perm = [0, 2, 1]} : (!channels) -> !tokens
    %wide = "dhlo.transpose"(%long) {perm = [0, 2, 1]} : (!long) -> !wide
    %f = "dhlo.matmul"(%wide, %square) : (!wide, tensor<7x7xf32>) -> !wide
    %stays = "dhlo.transpose"(%f) {perm = [0, 2, 1]} : (!wide) -> !long
    return %back, %stays : !tokens, !long
  }
}
