!q = tensor<?x2x?x7xf32, #dhlo.shape<["s0", "2", "s1", "7"]>>
!latents = tensor<?x1x?x5xf32, #dhlo.shape<["s0", "1", "s2", "5"]>>
!turned = tensor<?x1x?x3xf32, #dhlo.shape<["s0", "1", "s2", "3"]>>
!product = tensor<?x1x?x20xf32, #dhlo.shape<["s0", "1", "s2", "20"]>>
!split = tensor<?x?x2x10xf32, #dhlo.shape<["s0", "s2", "2", "10"]>>
!heads = tensor<?x2x?x10xf32, #dhlo.shape<["s0", "2", "s2", "10"]>>
!own = tensor<?x2x?x4xf32, #dhlo.shape<["s0", "2", "s2", "4"]>>
!shared = tensor<?x2x?x3xf32, #dhlo.shape<["s0", "2", "s2", "3"]>>
!keys = tensor<?x2x?x7xf32, #dhlo.shape<["s0", "2", "s2", "7"]>>
!values = tensor<?x2x?x6xf32, #dhlo.shape<["s0", "2", "s2", "6"]>>
!mask = tensor<?x2x?x?xi1, #dhlo.shape<["s0", "2", "s1", "s2"]>>
!y = tensor<?x2x?x6xf32, #dhlo.shape<["s0", "2", "s1", "6"]>>
module {
  // Keys of 4 columns and values of 6 are products of latents of 5; all heads share 3 columns of keys. One head of 8 columns is left.
  func.func @main(%q: !q {dhlo.name = "q"}, %latents: !latents {dhlo.name = "latents", dhlo.page = 16 : i64}, %turned: !turned {dhlo.name = "turned", dhlo.page = 16 : i64}, %mask: !mask {dhlo.name = "mask"}) -> !y {
    %w = "dhlo.weight"() {name_ = "w"} : () -> tensor<20x5xf32>
    %wt = "dhlo.transpose"(%w) {perm = [1, 0]} : (tensor<20x5xf32>) -> tensor<5x20xf32>
    %product = "dhlo.matmul"(%latents, %wt) : (!latents, tensor<5x20xf32>) -> !product
    %split = "dhlo.reshape"(%product) : (!product) -> !split
    %heads = "dhlo.transpose"(%split) {perm = [0, 2, 1, 3]} : (!split) -> !heads
    %own = "dhlo.slice"(%heads) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (!heads) -> !own
    %values = "dhlo.slice"(%heads) {starts = ["0", "0", "0", "4"], steps = [1, 1, 1, 1]} : (!heads) -> !values
    %shared = "dhlo.broadcast"(%turned) {dims = [0, 1, 2, 3]} : (!turned) -> !shared
    %keys = "dhlo.concat"(%own, %shared) {dim = 3 : i64} : (!own, !shared) -> !keys
    %y = "dhlo.attention"(%q, %keys, %values, %mask) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !keys, !values, !mask) -> !y
    return %y : !y
  }
}
