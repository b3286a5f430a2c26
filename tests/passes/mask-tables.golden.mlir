module {
  func.func @main(%arg0: tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>> {dhlo.name = "scores"}, %arg1: tensor<1x?xf32, #dhlo.shape<["1", "s2"]>> {dhlo.name = "keys", dhlo.page = 16 : i64}) -> (tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<1x1x?x24xi1, #dhlo.shape<["1", "1", "s1", "24"]>>) {
    %0 = "dhlo.weight"() {name_ = "bias"} : () -> tensor<1x1x24x24xi1>
    %1 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %2 = "dhlo.full"() {value = "s2"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %3 = "dhlo.add"(%1, %2) : (tensor<?xi64, #dhlo.shape<["s1"]>>, tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %4 = "dhlo.broadcast"(%3) {dims = [2]} : (tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %5 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["s1 + s2"]>>
    %6 = "dhlo.broadcast"(%5) {dims = [3]} : (tensor<?xi64, #dhlo.shape<["s1 + s2"]>>) -> tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %7 = "dhlo.le"(%6, %4) : (tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>, tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>) -> tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %8 = "dhlo.full"() {value = "3"} : () -> tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %9 = "dhlo.sub"(%4, %8) : (tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>, tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>) -> tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %10 = "dhlo.gt"(%6, %9) : (tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>, tensor<1x1x?x?xi64, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>) -> tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %11 = "dhlo.and"(%7, %10) : (tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>, tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>) -> tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>
    %12 = "dhlo.reshape"(%11) : (tensor<1x1x?x?xi1, #dhlo.shape<["1", "1", "s1", "s1 + s2"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
    %13 = "dhlo.full"() {value = "-inf"} : () -> tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>
    %14 = "dhlo.select"(%12, %arg0, %13) : (tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>
    %15 = "dhlo.slice"(%0) {starts = ["0", "0", "0", "0"], steps = [1, 1, 2, 1]} : (tensor<1x1x24x24xi1>) -> tensor<1x1x?x24xi1, #dhlo.shape<["1", "1", "s1", "24"]>>
    return %14, %15 : tensor<?x?xf32, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<1x1x?x24xi1, #dhlo.shape<["1", "1", "s1", "24"]>>
  }
}
