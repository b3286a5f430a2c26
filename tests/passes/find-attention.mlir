!q = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
!kt = tensor<?x4x8x?xf32, #dhlo.shape<["n", "4", "8", "t"]>>
!k = tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>
!scores = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
!sees = tensor<?x4x?x?xi1, #dhlo.shape<["n", "4", "s", "t"]>>
!joined = tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t + 1"]>>
!sum = tensor<?x4x?xf32, #dhlo.shape<["n", "4", "s"]>>
!row = tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>
module {
  // Scores, capped, beside a sink for each head. Without the sink a row that sees nothing is a mean of values: it stays as it is.
  // Rows of -inf that give zeros are attention's: %w hides keys by -inf; to %x finite numbers, which don't, are added.
  func.func @main(%q: !q {dhlo.name = "q"}, %k: !k {dhlo.name = "k"}, %sinks: tensor<4xf32> {dhlo.name = "sinks"}, %sees: !sees {dhlo.name = "sees"}) -> (!q, !q, !q, !q) {
    %kt = "dhlo.transpose"(%k) {perm = [0, 1, 3, 2]} : (!k) -> !kt
    %product = "dhlo.matmul"(%q, %kt) : (!q, !kt) -> !scores
    %scale = "dhlo.full"() {value = "0.25"} : () -> !scores
    %scaled = "dhlo.mul"(%product, %scale) : (!scores, !scores) -> !scores
    %cap = "dhlo.full"() {value = "50.0"} : () -> !scores
    %share = "dhlo.div"(%scaled, %cap) : (!scores, !scores) -> !scores
    %bent = "dhlo.tanh"(%share) : (!scores) -> !scores
    %capped = "dhlo.mul"(%bent, %cap) : (!scores, !scores) -> !scores
    %nothing = "dhlo.full"() {value = "0.0"} : () -> !scores
    %least = "dhlo.full"() {value = "-3.4028234663852886e+38"} : () -> !scores
    %mask = "dhlo.select"(%sees, %nothing, %least) : (!sees, !scores, !scores) -> !scores
    %scores = "dhlo.add"(%capped, %mask) : (!scores, !scores) -> !scores
    %one = "dhlo.full"() {value = "1.0"} : () -> !row

    %four = "dhlo.reshape"(%sinks) : (tensor<4xf32>) -> tensor<1x4x1x1xf32>
    %last = "dhlo.broadcast"(%four) {dims = [0, 1, 2, 3]} : (tensor<1x4x1x1xf32>) -> !row
    %joined = "dhlo.concat"(%scores, %last) {dim = 3 : i64} : (!scores, !row) -> !joined
    %top = "dhlo.reduce"(%joined) {dims = [3], how = "maxnum"} : (!joined) -> !sum
    %top_row = "dhlo.reshape"(%top) : (!sum) -> !row
    %top_all = "dhlo.broadcast"(%top_row) {dims = [0, 1, 2, 3]} : (!row) -> !joined
    %less = "dhlo.sub"(%joined, %top_all) : (!joined, !joined) -> !joined
    %e = "dhlo.exp_below"(%less) : (!joined) -> !joined
    %sum = "dhlo.reduce"(%e) {dims = [3], how = "sum"} : (!joined) -> !sum
    %sum_row = "dhlo.reshape"(%sum) : (!sum) -> !row
    %inverse = "dhlo.div"(%one, %sum_row) : (!row, !row) -> !row
    %inverse_all = "dhlo.broadcast"(%inverse) {dims = [0, 1, 2, 3]} : (!row) -> !joined
    %weights = "dhlo.mul"(%e, %inverse_all) : (!joined, !joined) -> !joined
    %kept = "dhlo.slice"(%weights) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (!joined) -> !scores
    %y = "dhlo.matmul"(%kept, %k) : (!scores, !k) -> !q

    %best = "dhlo.reduce"(%scores) {dims = [3], how = "maxnum"} : (!scores) -> !sum
    %best_row = "dhlo.reshape"(%best) : (!sum) -> !row
    %best_all = "dhlo.broadcast"(%best_row) {dims = [0, 1, 2, 3]} : (!row) -> !scores
    %below = "dhlo.sub"(%scores, %best_all) : (!scores, !scores) -> !scores
    %f = "dhlo.exp_below"(%below) : (!scores) -> !scores
    %total = "dhlo.reduce"(%f) {dims = [3], how = "sum"} : (!scores) -> !sum
    %total_row = "dhlo.reshape"(%total) : (!sum) -> !row
    %by = "dhlo.div"(%one, %total_row) : (!row, !row) -> !row
    %by_all = "dhlo.broadcast"(%by) {dims = [0, 1, 2, 3]} : (!row) -> !scores
    %shares = "dhlo.mul"(%f, %by_all) : (!scores, !scores) -> !scores
    %z = "dhlo.matmul"(%shares, %k) : (!scores, !k) -> !q

    %hidden = "dhlo.full"() {value = "-inf"} : () -> !scores
    %some = "dhlo.sub"(%scaled, %mask) : (!scores, !scores) -> !scores
    %only = "dhlo.select"(%sees, %some, %hidden) : (!sees, !scores, !scores) -> !scores
    %most = "dhlo.reduce"(%only) {dims = [3], how = "max"} : (!scores) -> !sum
    %most_row = "dhlo.reshape"(%most) : (!sum) -> !row
    %hidden_row = "dhlo.full"() {value = "-inf"} : () -> !row
    %none = "dhlo.eq"(%most_row, %hidden_row) : (!row, !row) -> tensor<?x4x?x1xi1, #dhlo.shape<["n", "4", "s", "1"]>>
    %none_all = "dhlo.broadcast"(%none) {dims = [0, 1, 2, 3]} : (tensor<?x4x?x1xi1, #dhlo.shape<["n", "4", "s", "1"]>>) -> !sees
    %most_all = "dhlo.broadcast"(%most_row) {dims = [0, 1, 2, 3]} : (!row) -> !scores
    %under = "dhlo.sub"(%only, %most_all) : (!scores, !scores) -> !scores
    %g = "dhlo.exp_below"(%under) : (!scores) -> !scores
    %parts = "dhlo.reduce"(%g) {dims = [3], how = "sum"} : (!scores) -> !sum
    %parts_row = "dhlo.reshape"(%parts) : (!sum) -> !row
    %of = "dhlo.div"(%one, %parts_row) : (!row, !row) -> !row
    %of_all = "dhlo.broadcast"(%of) {dims = [0, 1, 2, 3]} : (!row) -> !scores
    %soft = "dhlo.mul"(%g, %of_all) : (!scores, !scores) -> !scores
    %safe = "dhlo.select"(%none_all, %nothing, %soft) : (!sees, !scores, !scores) -> !scores
    %w = "dhlo.matmul"(%safe, %k) : (!scores, !k) -> !q

    %best_none = "dhlo.eq"(%best_row, %hidden_row) : (!row, !row) -> tensor<?x4x?x1xi1, #dhlo.shape<["n", "4", "s", "1"]>>
    %best_none_all = "dhlo.broadcast"(%best_none) {dims = [0, 1, 2, 3]} : (tensor<?x4x?x1xi1, #dhlo.shape<["n", "4", "s", "1"]>>) -> !sees
    %finite = "dhlo.select"(%best_none_all, %nothing, %shares) : (!sees, !scores, !scores) -> !scores
    %x = "dhlo.matmul"(%finite, %k) : (!scores, !k) -> !q
    "func.return"(%y, %z, %w, %x) : (!q, !q, !q, !q) -> ()
  }
}
