!q = tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>>
!new = tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "s1", "16"]>>
!cache = tensor<1x2x64x16xf32>
!token = tensor<?xi64, #dhlo.shape<["s1"]>>
!at = tensor<?x64xi64, #dhlo.shape<["s1", "64"]>>
!sees = tensor<?x64xi1, #dhlo.shape<["s1", "64"]>>
!mask = tensor<1x4x?x64xi1, #dhlo.shape<["1", "4", "s1", "64"]>>
module attributes {dhlo.symbols = {s1 = [1, 64]}, dhlo.joined_states = {keys = 16 : i64, values = 16 : i64}} {
  // The caches become arguments as long as the past, which positions are counted from; nothing is kept of how many there are. The
  // mask compares as many positions as there are keys.
  func.func @main(%q: !q {dhlo.name = "q"}, %k: !new {dhlo.name = "k"}, %v: !new {dhlo.name = "v"}, %position: !token {dhlo.name = "cache_position"}) -> (!q, !cache {dhlo.state = "keys"}, !cache {dhlo.state = "values"}, tensor<i64> {dhlo.state = "filled"}) {
    %keys = "dhlo.weight"() {name_ = "keys"} : () -> !cache
    %values = "dhlo.weight"() {name_ = "values"} : () -> !cache
    %first = "dhlo.slice"(%position) {starts = ["0"], steps = [1]} : (!token) -> tensor<1xi64>
    %begin = "dhlo.reshape"(%first) : (tensor<1xi64>) -> tensor<i64>
    %behind = "dhlo.broadcast"(%begin) {dims = []} : (tensor<i64>) -> !token
    %tokens = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !token
    %positions = "dhlo.add"(%tokens, %behind) : (!token, !token) -> !token
    %all_keys = "dhlo.scatter"(%keys, %positions, %k) {at = 2 : i64, dims = [2], how = "set", wrap = false} : (!cache, !token, !new) -> !cache
    %all_values = "dhlo.scatter"(%values, %positions, %v) {at = 2 : i64, dims = [2], how = "set", wrap = false} : (!cache, !token, !new) -> !cache
    %numbers = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<64xi64>
    %of_key = "dhlo.broadcast"(%numbers) {dims = [1]} : (tensor<64xi64>) -> !at
    %of_token = "dhlo.broadcast"(%positions) {dims = [0]} : (!token) -> !at
    %sees = "dhlo.le"(%of_key, %of_token) : (!at, !at) -> !sees
    %mask = "dhlo.broadcast"(%sees) {dims = [2, 3]} : (!sees) -> !mask
    %y = "dhlo.attention"(%q, %all_keys, %all_values, %mask) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.25 : f64, softcap = 0.0 : f64} : (!q, !cache, !cache, !mask) -> !q
    %count = "dhlo.full"() {value = "s1"} : () -> tensor<i64>
    %filled = "dhlo.add"(%begin, %count) : (tensor<i64>, tensor<i64>) -> tensor<i64>
    return %y, %all_keys, %all_values, %filled : !q, !cache, !cache, tensor<i64>
  }
}
