!x = tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>
!r = tensor<?x?xf32, #dhlo.shape<["n", "s + 1"]>>
!r1 = tensor<?x?x1xf32, #dhlo.shape<["n", "s + 1", "1"]>>
!h = tensor<?x?x2x4xf32, #dhlo.shape<["n", "s + 1", "2", "4"]>>
!t = tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>
!last = tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
module {
  // Only the last row is returned: queries, attention, product and norm are computed for that row. Keys and values need all rows.
  func.func @main(%x: !x) -> !last {
    %wq = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %wk = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<8x8xf32>
    %wo = "dhlo.weight"() {name_ = "o.weight"} : () -> tensor<8x8xf32>
    %q = "dhlo.matmul"(%x, %wq) : (!x, tensor<8x8xf32>) -> !x
    %k = "dhlo.matmul"(%x, %wk) : (!x, tensor<8x8xf32>) -> !x
    %q4 = "dhlo.reshape"(%q) : (!x) -> !h
    %k4 = "dhlo.reshape"(%k) : (!x) -> !h
    %qt = "dhlo.transpose"(%q4) {perm = [0, 2, 1, 3]} : (!h) -> !t
    %kt = "dhlo.transpose"(%k4) {perm = [0, 2, 1, 3]} : (!h) -> !t
    %a = "dhlo.attention"(%qt, %kt, %kt) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64, causal = true, past = "0"} : (!t, !t, !t) -> !t
    %at = "dhlo.transpose"(%a) {perm = [0, 2, 1, 3]} : (!t) -> !h
    %a3 = "dhlo.reshape"(%at) : (!h) -> !x
    %o = "dhlo.matmul"(%a3, %wo) : (!x, tensor<8x8xf32>) -> !x
    %sum = "dhlo.add"(%o, %x) : (!x, !x) -> !x
    %max = "dhlo.reduce"(%sum) {how = "max", dims = [2]} : (!x) -> !r
    %col = "dhlo.reshape"(%max) : (!r) -> !r1
    %wide = "dhlo.broadcast"(%col) {dims = [0, 1, 2]} : (!r1) -> !x
    %norm = "dhlo.div"(%sum, %wide) : (!x, !x) -> !x
    %y = "dhlo.slice"(%norm) {starts = ["0", "s", "0"], steps = [1, 1, 1]} : (!x) -> !last
    return %y : !last
  }
  // The argument says of which tokens results are wanted: product and norm are computed for these. The keys need all.
  func.func @step(%x: tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, %kept: tensor<?xi64, #dhlo.shape<["r"]>>, %pool: tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.paged = "pool 0"}, %slots: tensor<?xi64, #dhlo.shape<["t"]>> {dhlo.paged = "slots 0"}, %tables: tensor<?x?xi32, #dhlo.shape<["b", "m"]>> {dhlo.paged = "tables 0"}, %starts: tensor<?xi32, #dhlo.shape<["b + 1"]>> {dhlo.paged = "starts"}, %lengths: tensor<?xi32, #dhlo.shape<["b"]>> {dhlo.paged = "lengths"}) -> (tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.argument = 2 : i64}) attributes {dhlo.blocks = array<i64: 16, 0>} {
    %w = "dhlo.weight"() {name_ = "o.weight"} : () -> tensor<8x8xf32>
    %o = "dhlo.matmul"(%x, %w) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<8x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %sum = "dhlo.add"(%o, %x) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %two = "dhlo.full"() {value = "2.0"} : () -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %double = "dhlo.mul"(%sum, %two) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
    %y = "dhlo.take"(%double, %kept) {at = 0 : i64, dims = [0], wrap = true} : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>, tensor<?xi64, #dhlo.shape<["r"]>>) -> tensor<?x8xf32, #dhlo.shape<["r", "8"]>>
    %rows = "dhlo.reshape"(%x) : (tensor<?x8xf32, #dhlo.shape<["t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
    %new = "dhlo.scatter"(%pool, %slots, %rows) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>, tensor<?xi64, #dhlo.shape<["t"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
    return %y, %new : tensor<?x8xf32, #dhlo.shape<["r", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
  }
}
