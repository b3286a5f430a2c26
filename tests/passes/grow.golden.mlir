module {
  func.func @main(%arg0: tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>> {dhlo.filled = "p", dhlo.grows = 1 : i64, dhlo.name = "past"}, %arg1: tensor<2x?xf32, #dhlo.shape<["2", "n"]>> {dhlo.name = "x"}) -> (tensor<i64> {dhlo.size_of = 0 : i64}, tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>, tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>> {dhlo.argument = 0 : i64}) {
    %0 = "dhlo.slice"(%arg0) {starts = ["0", "0"], steps = [1, 1]} : (tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>>) -> tensor<2x?xf32, #dhlo.shape<["2", "p"]>>
    "dhlo.assert"() {condition = "n + p <= cap0", message = "the buffer of 'past' is full"} : () -> ()
    %1 = "dhlo.update_slice"(%arg0, %arg1) {starts = ["0", "p"]} : (tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>>, tensor<2x?xf32, #dhlo.shape<["2", "n"]>>) -> tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>>
    %2 = "dhlo.slice"(%1) {starts = ["0", "0"], steps = [1, 1]} : (tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>>) -> tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>
    %3 = "dhlo.full"() {value = "n + p"} : () -> tensor<i64>
    %4 = "dhlo.exp"(%2) : (tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>) -> tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>
    return %3, %4, %1 : tensor<i64>, tensor<2x?xf32, #dhlo.shape<["2", "n + p"]>>, tensor<2x?xf32, #dhlo.shape<["2", "cap0"]>>
  }
}
