!many = tensor<2x?x3xf32, #dhlo.shape<["2", "n", "3"]>>
!rows = tensor<?x3xf32, #dhlo.shape<["2*n", "3"]>>
!w = tensor<?x3xf32, #dhlo.shape<["m", "3"]>>
!turned = tensor<3x?xf32, #dhlo.shape<["3", "m"]>>
!y = tensor<?x?xf32, #dhlo.shape<["2*n", "m"]>>
!q = tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
!heads = tensor<1x2x?x8xf32, #dhlo.shape<["1", "2", "n", "8"]>>
module {
  // An argument of rank 0 has no gaps, and a buffer that grows is dense; new content goes back at the end. Where products read an
  // argument, dims that they don't see as one may lie anywhere, of what attention reads all but the last; an addition of the same
  // rows takes them dense.
  func.func @main(%x: tensor<4x3xf32>, %p: tensor<f32>, %past: tensor<2x?xf32, #dhlo.shape<["2", "cap2"]>> {dhlo.grows = 1 : i64, dhlo.filled = "s0"}, %many: !many, %w: !w, %queries: !q, %keys: !heads, %values: !heads) -> (tensor<4x3xf32> {dhlo.argument = 0 : i64}, tensor<4x3xf32> {dhlo.state = "c"}, tensor<f32>, !y, !heads) {
    %c = "dhlo.state"() {name_ = "c"} : () -> tensor<4x3xf32>
    %y = "dhlo.add"(%x, %c) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %z = "dhlo.neg"(%y) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %r = "dhlo.neg"(%p) : (tensor<f32>) -> tensor<f32>
    %product = "dhlo.group"() ({
      %rows = "dhlo.reshape"(%many) : (!many) -> !rows
      %turned = "dhlo.transpose"(%w) {perm = [1, 0]} : (!w) -> !turned
      %sums = "dhlo.matmul"(%rows, %turned) : (!rows, !turned) -> !y
      "dhlo.yield"(%sums) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!y) -> ()
    }) {anchor = "matmul", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> !y
    %attended = "dhlo.group"() ({
      %q = "dhlo.transpose"(%queries) {perm = [0, 2, 1, 3]} : (!q) -> !heads
      %o = "dhlo.attention"(%q, %keys, %values) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!heads, !heads, !heads) -> !heads
      %sum = "dhlo.add"(%o, %values) : (!heads, !heads) -> !heads
      "dhlo.yield"(%sum) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!heads) -> ()
    }) {anchor = "attention", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> !heads
    return %y, %z, %r, %product, %attended : tensor<4x3xf32>, tensor<4x3xf32>, tensor<f32>, !y, !heads
  }
}
