!q = tensor<?x4x?x16xf32, #dhlo.shape<["s0", "4", "s1", "16"]>>
!new = tensor<?x2x?x16xf32, #dhlo.shape<["s0", "2", "s1", "16"]>>
!cache = tensor<?x2x?x16xf32, #dhlo.shape<["s0", "2", "s2", "16"]>>
!whole = tensor<?x2x?x16xf32, #dhlo.shape<["s0", "2", "s1 + s2", "16"]>>
!padding = tensor<?x?xi1, #dhlo.shape<["s0", "s1 + s2"]>>
!token = tensor<?xi64, #dhlo.shape<["s1"]>>
!key = tensor<?xi64, #dhlo.shape<["s1 + s2"]>>
!at = tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
!sees = tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
!source = tensor<?x4x?x16xf32, #dhlo.shape<["s0", "4", "s3", "16"]>>
!mask = tensor<?x4x?x?xi1, #dhlo.shape<["s0", "4", "s1", "s1 + s2"]>>
module attributes {dhlo.symbols = {s0 = [0, 64], s1 = [0, 9223372036854775807], s2 = [0, 9223372036854775807], s3 = [1, 9223372036854775807]}} {
  // Keys and values go to slots of pools. The mask says what `causal` and a window of 37 say, but for padding, of which there is none.
  // What attention reads and nothing is joined to lies in pools with a table and lengths of their own.
  func.func @main(%q: !q {dhlo.name = "q"}, %k: !new {dhlo.name = "k"}, %v: !new {dhlo.name = "v"}, %keys: !cache {dhlo.name = "keys", dhlo.page = 16 : i64}, %values: !cache {dhlo.name = "values", dhlo.page = 16 : i64}, %padding: !padding {dhlo.name = "padding"}, %cross_keys: !source {dhlo.name = "cross_keys", dhlo.page = 16 : i64}, %cross_values: !source {dhlo.name = "cross_values", dhlo.page = 16 : i64}) -> (!q, !whole, !whole) {
    %all_keys = "dhlo.concat"(%keys, %k) {dim = 2 : i64} : (!cache, !new) -> !whole
    %all_values = "dhlo.concat"(%values, %v) {dim = 2 : i64} : (!cache, !new) -> !whole
    %tokens = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !token
    %past = "dhlo.full"() {value = "s2"} : () -> !token
    %positions = "dhlo.add"(%tokens, %past) : (!token, !token) -> !token
    %numbers = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !key
    %of_token = "dhlo.broadcast"(%positions) {dims = [0]} : (!token) -> !at
    %of_key = "dhlo.broadcast"(%numbers) {dims = [1]} : (!key) -> !at
    %behind = "dhlo.le"(%of_key, %of_token) : (!at, !at) -> !sees
    %width = "dhlo.full"() {value = "37"} : () -> !at
    %first = "dhlo.sub"(%of_token, %width) : (!at, !at) -> !at
    %near = "dhlo.gt"(%of_key, %first) : (!at, !at) -> !sees
    %both = "dhlo.and"(%behind, %near) : (!sees, !sees) -> !sees
    %positional = "dhlo.broadcast"(%both) {dims = [2, 3]} : (!sees) -> !mask
    %real = "dhlo.broadcast"(%padding) {dims = [0, 3]} : (!padding) -> !mask
    %mask = "dhlo.and"(%positional, %real) : (!mask, !mask) -> !mask
    %y = "dhlo.attention"(%q, %all_keys, %all_values, %mask) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.25 : f64, softcap = 0.0 : f64} : (!q, !whole, !whole, !mask) -> !q
    %z = "dhlo.attention"(%y, %cross_keys, %cross_values) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !source, !source) -> !q
    return %z, %all_keys, %all_values : !q, !whole, !whole
  }
}
