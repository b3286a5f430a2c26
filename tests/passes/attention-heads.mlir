!q = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
!kv = tensor<?x2x?x8xf32, #dhlo.shape<["n", "2", "past + s", "8"]>>
!kv5 = tensor<?x2x2x?x8xf32, #dhlo.shape<["n", "2", "2", "past + s", "8"]>>
!kv4 = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "past + s", "8"]>>
module {
  // Every key and value head was repeated for the query heads that share it; attention reads the shared one.
  func.func @main(%q: !q, %k: !kv, %v: !kv) -> !q {
    %k5 = "dhlo.broadcast"(%k) {dims = [0, 1, 3, 4]} : (!kv) -> !kv5
    %k4 = "dhlo.reshape"(%k5) : (!kv5) -> !kv4
    %v5 = "dhlo.broadcast"(%v) {dims = [0, 1, 3, 4]} : (!kv) -> !kv5
    %v4 = "dhlo.reshape"(%v5) : (!kv5) -> !kv4
    %y = "dhlo.attention"(%q, %k4, %v4) {scale = 0.35 : f64, causal = false} : (!q, !kv4, !kv4) -> !q
    return %y : !q
  }
}
