!x = tensor<?x?x8xf32, #dhlo.shape<["n", "s", "8"]>>
!kv = tensor<?x?x4xf32, #dhlo.shape<["n", "s", "4"]>>
!q4 = tensor<?x?x2x4xf32, #dhlo.shape<["n", "s", "2", "4"]>>
!k4 = tensor<?x?x1x4xf32, #dhlo.shape<["n", "s", "1", "4"]>>
!r = tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
!k = tensor<?x4xf32, #dhlo.shape<["t", "4"]>>
!r1 = tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
!k1 = tensor<1x?x4xf32, #dhlo.shape<["1", "t", "4"]>>
module {
  // Query and key projections read the same x: one product with both weights, sliced.
  func.func @main(%x: !x) -> (!q4, !k4) {
    %wq = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %bq = "dhlo.weight"() {name_ = "q.bias"} : () -> tensor<8xf32>
    %tq = "dhlo.transpose"(%wq) {perm = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %mq = "dhlo.matmul"(%x, %tq) : (!x, tensor<8x8xf32>) -> !x
    %cq = "dhlo.broadcast"(%bq) {dims = [2]} : (tensor<8xf32>) -> !x
    %q = "dhlo.add"(%mq, %cq) : (!x, !x) -> !x
    %wk = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<4x8xf32>
    %bk = "dhlo.weight"() {name_ = "k.bias"} : () -> tensor<4xf32>
    %tk = "dhlo.transpose"(%wk) {perm = [1, 0]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %mk = "dhlo.matmul"(%x, %tk) : (!x, tensor<8x4xf32>) -> !kv
    %ck = "dhlo.broadcast"(%bk) {dims = [2]} : (tensor<4xf32>) -> !kv
    %k = "dhlo.add"(%mk, %ck) : (!kv, !kv) -> !kv
    %q4 = "dhlo.reshape"(%q) : (!x) -> !q4
    %k4 = "dhlo.reshape"(%k) : (!kv) -> !k4
    return %q4, %k4 : !q4, !k4
  }
  // What adapters add to each becomes what they add to the one product.
  func.func @adapted(%x: !r, %weights: tensor<2x256xf32>, %adapters: tensor<?xi32, #dhlo.shape<["t"]>>) -> (!r1, !k1) {
    %wq = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %bq = "dhlo.weight"() {name_ = "q.bias"} : () -> tensor<8xf32>
    %tq = "dhlo.transpose"(%wq) {perm = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %mq = "dhlo.matmul"(%x, %tq) : (!r, tensor<8x8xf32>) -> !r
    %aq = "dhlo.adapt"(%mq, %x, %weights, %adapters) {at = [0], columns = [8], rank = 4 : i64} : (!r, !r, tensor<2x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> !r
    %cq = "dhlo.broadcast"(%bq) {dims = [1]} : (tensor<8xf32>) -> !r
    %q = "dhlo.add"(%aq, %cq) : (!r, !r) -> !r
    %wk = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<4x8xf32>
    %bk = "dhlo.weight"() {name_ = "k.bias"} : () -> tensor<4xf32>
    %tk = "dhlo.transpose"(%wk) {perm = [1, 0]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %mk = "dhlo.matmul"(%x, %tk) : (!r, tensor<8x4xf32>) -> !k
    %ak = "dhlo.adapt"(%mk, %x, %weights, %adapters) {at = [64], columns = [4], rank = 4 : i64} : (!k, !r, tensor<2x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> !k
    %ck = "dhlo.broadcast"(%bk) {dims = [1]} : (tensor<4xf32>) -> !k
    %k = "dhlo.add"(%ak, %ck) : (!k, !k) -> !k
    %q1 = "dhlo.reshape"(%q) : (!r) -> !r1
    %k1 = "dhlo.reshape"(%k) : (!k) -> !k1
    return %q1, %k1 : !r1, !k1
  }
}
