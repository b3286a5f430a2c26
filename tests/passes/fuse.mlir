!x = tensor<?x?xf32, #dhlo.shape<["n", "k"]>>
!w = tensor<?x8xf32, #dhlo.shape<["k", "8"]>>
!y = tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
!yt = tensor<8x?xf32, #dhlo.shape<["8", "n"]>>
!r = tensor<?xf32, #dhlo.shape<["n"]>>
module {
  // A product with bias and activation, a softmax over its rows, and a transposed loop that reads both.
  func.func @main(%x: !x, %w: !w, %bias: tensor<8xf32>) -> (!y, !yt) {
    %m = "dhlo.matmul"(%x, %w) : (!x, !w) -> !y
    %b = "dhlo.broadcast"(%bias) {dims = [1]} : (tensor<8xf32>) -> !y
    %a = "dhlo.add"(%m, %b) : (!y, !y) -> !y
    %h = "dhlo.tanh"(%a) : (!y) -> !y
    %top = "dhlo.reduce"(%h) {how = "max", dims = [1]} : (!y) -> !r
    %top2 = "dhlo.broadcast"(%top) {dims = [0]} : (!r) -> !y
    %d = "dhlo.sub"(%h, %top2) : (!y, !y) -> !y
    %e = "dhlo.exp"(%d) : (!y) -> !y
    %s = "dhlo.reduce"(%e) {how = "sum", dims = [1]} : (!y) -> !r
    %s2 = "dhlo.broadcast"(%s) {dims = [0]} : (!r) -> !y
    %p = "dhlo.div"(%e, %s2) : (!y, !y) -> !y
    %z = "dhlo.mul"(%p, %h) : (!y, !y) -> !y
    %t = "dhlo.transpose"(%z) {perm = [1, 0]} : (!y) -> !yt
    %tt = "dhlo.sigmoid"(%t) : (!yt) -> !yt
    return %p, %tt : !y, !yt
  }
}
