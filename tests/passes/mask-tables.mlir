!cache = tensor<1x?xf32, #dhlo.shape<["1", "s2"]>>
!scores = tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>
!table = tensor<1x1x24x24xi1>
!rows = tensor<1x1x?x24xi1, #dhlo.shape<["1", "1", "s1", "24"]>>
!part = tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
!sees = tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
module {
  // Rows from %past on of a matrix that is true in a band up to its diagonal say which keys come before a token and are near it.
  // One whose columns don't follow one another stays what it is.
  func.func @main(%scores: !scores {dhlo.name = "scores"}, %keys: !cache {dhlo.name = "keys", dhlo.page = 16 : i64}) -> (!scores, !rows) {
    %table = "dhlo.weight"() {name_ = "bias"} : () -> !table
    %rows = "dhlo.slice"(%table) {starts = ["0", "0", "s2", "0"], steps = [1, 1, 1, 1]} : (!table) -> !rows
    %part = "dhlo.slice"(%rows) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (!rows) -> !part
    %sees = "dhlo.reshape"(%part) : (!part) -> !sees
    %hidden = "dhlo.full"() {value = "-inf"} : () -> !scores
    %y = "dhlo.select"(%sees, %scores, %hidden) : (!sees, !scores, !scores) -> !scores
    %others = "dhlo.slice"(%table) {starts = ["0", "0", "0", "0"], steps = [1, 1, 2, 1]} : (!table) -> !rows
    return %y, %others : !scores, !rows
  }
}
