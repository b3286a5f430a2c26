!past = tensor<2x?xf32, #dhlo.shape<["2", "p"]>>
!new = tensor<2x?xf32, #dhlo.shape<["2", "n"]>>
!all = tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>
module {
  // What is joined to %past is written behind it; its result becomes the size, and the buffer is one more.
  func.func @main(%past: !past {dhlo.grow = 1 : i64, dhlo.name = "past"}, %x: !new {dhlo.name = "x"}) -> (!all, !all) {
    %all = "dhlo.concat"(%past, %x) {dim = 1 : i64} : (!past, !new) -> !all
    %y = "dhlo.exp"(%all) : (!all) -> !all
    return %all, %y : !all, !all
  }
}
