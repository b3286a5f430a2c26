!q = tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>
!new = tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
!i = tensor<?xi64, #dhlo.shape<["n"]>>
!c = tensor<1x6x2x8xf32>
!f = tensor<1x6x16xf32>
!kv = tensor<1x2x6x8xf32>
module attributes {dhlo.kv_cache = "int8", dhlo.symbols = {n = [1, 6]}} {
  // Keys are written by index, values of all heads side by side to a slice. The sum reads what the keys held before. Calls are no cache.
  func.func @main(%q: !q, %k: !new, %v: !new, %at: !i) -> (!q, tensor<f32>, !c {dhlo.state = "keys"}, !f {dhlo.state = "values"}, tensor<i64> {dhlo.state = "calls"}) {
    %keys = "dhlo.state"() {name_ = "keys"} : () -> !c
    %values = "dhlo.state"() {name_ = "values"} : () -> !f
    %sum = "dhlo.reduce"(%keys) {how = "sum", dims = [0, 1, 2, 3]} : (!c) -> tensor<f32>
    %k1 = "dhlo.scatter"(%keys, %at, %k) {dims = [1], at = 1 : i64, how = "set", wrap = false} : (!c, !i, !new) -> !c
    %vf = "dhlo.reshape"(%v) : (!new) -> tensor<1x?x16xf32, #dhlo.shape<["1", "n", "16"]>>
    %v1 = "dhlo.update_slice"(%values, %vf) {starts = ["0", "0", "0"]} : (!f, tensor<1x?x16xf32, #dhlo.shape<["1", "n", "16"]>>) -> !f
    %kt = "dhlo.transpose"(%k1) {perm = [0, 2, 1, 3]} : (!c) -> !kv
    %v4 = "dhlo.reshape"(%v1) : (!f) -> !c
    %vt = "dhlo.transpose"(%v4) {perm = [0, 2, 1, 3]} : (!c) -> !kv
    %y = "dhlo.attention"(%q, %kt, %vt) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, scale = 0.35 : f64, softcap = 0.0 : f64, causal = false, past = "0"} : (!q, !kv, !kv) -> !q
    %calls = "dhlo.full"() {value = "7"} : () -> tensor<i64>
    return %y, %sum, %k1, %v1, %calls : !q, tensor<f32>, !c, !f, tensor<i64>
  }
}
