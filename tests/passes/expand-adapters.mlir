!x = tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
!y = tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
!h = tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
!f = tensor<?x8xf32, #dhlo.shape<["t", "8"]>>
!t = tensor<?xi32, #dhlo.shape<["t"]>>

module {
  // Which rows have an adapter is computed once.
  func.func @main(%x: !x, %y: !y, %weights: tensor<5x112xf32>, %halves: !h, %sums: !f, %more: tensor<5x64xf32>, %adapters: !t) -> (!y, !f) {
    %a = "dhlo.adapt"(%y, %x, %weights, %adapters) {at = [0, 48], columns = [4, 2], rank = 4 : i64} : (!y, !x, tensor<5x112xf32>, !t) -> !y
    %b = "dhlo.adapt"(%sums, %halves, %more, %adapters) {at = [0], columns = [8], rank = 4 : i64} : (!f, !h, tensor<5x64xf32>, !t) -> !f
    return %a, %b : !y, !f
  }
}
