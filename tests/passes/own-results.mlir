!t = tensor<?xf32, #dhlo.shape<["n"]>>
!t2 = tensor<1x?xf32, #dhlo.shape<["1", "n"]>>
module {
  // Arguments, views of them, weights and repeated results are copied; %y has memory of its own. The same holds for branches.
  func.func @main(%p: tensor<i1>, %x: !t) -> (!t, !t2, tensor<2xf32>, !t, !t, !t) {
    %view = "dhlo.reshape"(%x) : (!t) -> !t2
    %w = "dhlo.weight"() {name_ = "w"} : () -> tensor<2xf32>
    %y = "dhlo.neg"(%x) : (!t) -> !t
    %z = "dhlo.cond"(%p) ({
      %e = "dhlo.exp"(%x) : (!t) -> !t
      "dhlo.yield"(%e) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!t) -> ()
    }, {
      "dhlo.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!t) -> ()
    }) {resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<i1>) -> !t
    return %x, %view, %w, %y, %y, %z : !t, !t2, tensor<2xf32>, !t, !t, !t
  }
}
