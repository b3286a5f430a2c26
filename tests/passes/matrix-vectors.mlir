!x = tensor<?x?xf32, #dhlo.shape<["m", "k"]>>
!t = tensor<?x?xf32, #dhlo.shape<["k", "m"]>>
!v = tensor<?x1xf32, #dhlo.shape<["k", "1"]>>
!r = tensor<1x?xf32, #dhlo.shape<["1", "k"]>>
!y = tensor<?x1xf32, #dhlo.shape<["m", "1"]>>
!z = tensor<1x?xf32, #dhlo.shape<["1", "m"]>>
!xb = tensor<?x?x8xbf16, #dhlo.shape<["b", "m", "8"]>>
!vb = tensor<?x8x1xbf16, #dhlo.shape<["b", "8", "1"]>>
!yb = tensor<?x?x1xbf16, #dhlo.shape<["b", "m", "1"]>>
!w = tensor<8x5xf32>
!wt = tensor<5x8xf32>
!a = tensor<1x8xf32>
!p = tensor<1x5xf32>
module {
  // One column: along rows, along columns of what is transposed, and of batches. One row: of a transposed argument, not of a weight.
  func.func @main(%x: !x, %v: !v, %t: !t, %r: !r, %xb: !xb, %vb: !vb, %a: !a) -> (!y, !y, !z, !yb, !p) {
    %y = "dhlo.matmul"(%x, %v) : (!x, !v) -> !y
    %s = "dhlo.transpose"(%t) {perm = [1, 0]} : (!t) -> !x
    %u = "dhlo.matmul"(%s, %v) : (!x, !v) -> !y
    %q = "dhlo.transpose"(%x) {perm = [1, 0]} : (!x) -> !t
    %z = "dhlo.matmul"(%r, %q) : (!r, !t) -> !z
    %yb = "dhlo.matmul"(%xb, %vb) : (!xb, !vb) -> !yb
    %w = "dhlo.weight"() {name_ = "w"} : () -> !wt
    %wt = "dhlo.transpose"(%w) {perm = [1, 0]} : (!wt) -> !w
    %p = "dhlo.matmul"(%a, %wt) : (!a, !w) -> !p
    return %y, %u, %z, %yb, %p : !y, !y, !z, !yb, !p
  }
}
