!q = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
!kv = tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>
!kv5 = tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
!kv4 = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
module {
  // Every key and value head was repeated for the query heads that share it; attention reads the shared one. Heads that are repeated
  // in turn stay.
  func.func @main(%q: !q, %k: !kv, %v: !kv) -> (!q, !q) {
    %k5 = "dhlo.broadcast"(%k) {dims = [0, 1, 3, 4]} : (!kv) -> !kv5
    %k4 = "dhlo.reshape"(%k5) : (!kv5) -> !kv4
    %v5 = "dhlo.broadcast"(%v) {dims = [0, 1, 3, 4]} : (!kv) -> !kv5
    %v4 = "dhlo.reshape"(%v5) : (!kv5) -> !kv4
    %y = "dhlo.attention"(%q, %k4, %v4) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, scale = 0.35 : f64, softcap = 0.0 : f64, causal = false, past = "0"} : (!q, !kv4, !kv4) -> !q
    %k5t = "dhlo.broadcast"(%k) {dims = [0, 2, 3, 4]} : (!kv) -> !kv5
    %k4t = "dhlo.reshape"(%k5t) : (!kv5) -> !kv4
    %v5t = "dhlo.broadcast"(%v) {dims = [0, 2, 3, 4]} : (!kv) -> !kv5
    %v4t = "dhlo.reshape"(%v5t) : (!kv5) -> !kv4
    %z = "dhlo.attention"(%q, %k4t, %v4t) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, scale = 0.35 : f64, softcap = 0.0 : f64, causal = false, past = "0"} : (!q, !kv4, !kv4) -> !q
    return %y, %z : !q, !q
  }
}
