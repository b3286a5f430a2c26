!q = tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
!k = tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>
!past = tensor<?xi1, #dhlo.shape<["s2"]>>
!real = tensor<2x?xi1, #dhlo.shape<["2", "s1 + s2"]>>
!query = tensor<?xi64, #dhlo.shape<["s1"]>>
!key = tensor<?xi64, #dhlo.shape<["s1 + s2"]>>
!column = tensor<?x1xi64, #dhlo.shape<["s1", "1"]>>
!pairs = tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
!sees = tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
!mask = tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
!bias = tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>
!added = tensor<2x1x?x?xf32, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
module {
  // Queries see keys up to their own position, which all masks say: %y and nothing else, %z of a window, too, %w also of padding.
  func.func @main(%q: !q {dhlo.name = "q"}, %k: !k {dhlo.name = "k"}, %real: !real {dhlo.name = "real"}, %past: !past {dhlo.name = "past"}) -> (!q, !q, !q, !q, !q, !q, !q) {
    %i = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !query
    %held = "dhlo.full"() {value = "s2"} : () -> !query
    %at = "dhlo.add"(%i, %held) : (!query, !query) -> !query
    %column = "dhlo.reshape"(%at) : (!query) -> !column
    %own = "dhlo.broadcast"(%column) {dims = [0, 1]} : (!column) -> !pairs
    %j = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> !key
    %key = "dhlo.broadcast"(%j) {dims = [1]} : (!key) -> !pairs
    %up = "dhlo.le"(%key, %own) : (!pairs, !pairs) -> !sees
    %up_to = "dhlo.broadcast"(%up) {dims = [2, 3]} : (!sees) -> !mask
    %y = "dhlo.attention"(%q, %k, %k, %up_to) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !mask) -> !q
    %width = "dhlo.full"() {value = "3"} : () -> !pairs
    %begin = "dhlo.sub"(%own, %width) : (!pairs, !pairs) -> !pairs
    %near = "dhlo.lt"(%begin, %key) : (!pairs, !pairs) -> !sees
    %both = "dhlo.and"(%near, %up) : (!sees, !sees) -> !sees
    %window = "dhlo.broadcast"(%both) {dims = [2, 3]} : (!sees) -> !mask
    %z = "dhlo.attention"(%q, %k, %k, %window) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !mask) -> !q
    %padding = "dhlo.broadcast"(%real) {dims = [0, 3]} : (!real) -> !mask
    %without = "dhlo.and"(%up_to, %padding) : (!mask, !mask) -> !mask
    %w = "dhlo.attention"(%q, %k, %k, %without) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !mask) -> !q
    // The other way round: it sees what comes later, and stays as it is.
    %later = "dhlo.ge"(%key, %own) : (!pairs, !pairs) -> !sees
    %from = "dhlo.broadcast"(%later) {dims = [2, 3]} : (!sees) -> !mask
    %x = "dhlo.attention"(%q, %k, %k, %from) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !mask) -> !q
    // All queries see what the first one does.
    %zero = "dhlo.iota"() {dim = 0 : i64, start = "s2", step = "1"} : () -> tensor<1xi64>
    %one = "dhlo.reshape"(%zero) : (tensor<1xi64>) -> tensor<1x1xi64>
    %of_one = "dhlo.broadcast"(%one) {dims = [0, 1]} : (tensor<1x1xi64>) -> tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>
    %of_all = "dhlo.broadcast"(%j) {dims = [1]} : (!key) -> tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>
    %firsts = "dhlo.le"(%of_all, %of_one) : (tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>, tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>) -> tensor<1x?xi1, #dhlo.shape<["1", "s1 + s2"]>>
    %same = "dhlo.broadcast"(%firsts) {dims = [2, 3]} : (tensor<1x?xi1, #dhlo.shape<["1", "s1 + s2"]>>) -> !mask
    %v = "dhlo.attention"(%q, %k, %k, %same) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !mask) -> !q
    // Numbers that are added where a key is seen stay, without its mask if that says nothing else.
    %less = "dhlo.sub"(%key, %own) : (!pairs, !pairs) -> !pairs
    %near_one = "dhlo.convert"(%less) : (!pairs) -> !bias
    %bias = "dhlo.broadcast"(%near_one) {dims = [2, 3]} : (!bias) -> !added
    %hidden = "dhlo.full"() {value = "-inf"} : () -> !added
    %weighed = "dhlo.select"(%up_to, %bias, %hidden) : (!mask, !added, !added) -> !added
    %u = "dhlo.attention"(%q, %k, %k, %weighed) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !added) -> !q
    %rest = "dhlo.select"(%without, %bias, %hidden) : (!mask, !added, !added) -> !added
    %t = "dhlo.attention"(%q, %k, %k, %rest) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, causal = false, past = "0", scale = 0.5 : f64, softcap = 0.0 : f64} : (!q, !k, !k, !added) -> !q
    return %y, %z, %w, %x, %v, %u, %t : !q, !q, !q, !q, !q, !q, !q
  }
}
