module attributes {dhlo.symbols = {past4 = [0, 9223372036854775807], s1 = [1, 9223372036854775807]}} {
  func.func @main(%arg0: tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>> {dhlo.name = "q"}, %arg1: tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "s1", "16"]>> {dhlo.name = "k"}, %arg2: tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "s1", "16"]>> {dhlo.name = "v"}, %arg3: tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4", "16"]>> {dhlo.name = "keys", dhlo.page = 16 : i64}, %arg4: tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4", "16"]>> {dhlo.name = "values", dhlo.page = 16 : i64}) -> (tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>> {dhlo.state = "keys"}, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>> {dhlo.state = "values"}) {
    %0 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %1 = "dhlo.full"() {value = "past4"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %2 = "dhlo.add"(%0, %1) : (tensor<?xi64, #dhlo.shape<["s1"]>>, tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %3 = "dhlo.concat"(%arg3, %arg1) {dim = 2 : i64} : (tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "s1", "16"]>>) -> tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>
    %4 = "dhlo.concat"(%arg4, %arg2) {dim = 2 : i64} : (tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "s1", "16"]>>) -> tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>
    %5 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["past4 + s1"]>>
    %6 = "dhlo.broadcast"(%5) {dims = [1]} : (tensor<?xi64, #dhlo.shape<["past4 + s1"]>>) -> tensor<?x?xi64, #dhlo.shape<["s1", "past4 + s1"]>>
    %7 = "dhlo.broadcast"(%2) {dims = [0]} : (tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<?x?xi64, #dhlo.shape<["s1", "past4 + s1"]>>
    %8 = "dhlo.le"(%6, %7) : (tensor<?x?xi64, #dhlo.shape<["s1", "past4 + s1"]>>, tensor<?x?xi64, #dhlo.shape<["s1", "past4 + s1"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "past4 + s1"]>>
    %9 = "dhlo.broadcast"(%8) {dims = [2, 3]} : (tensor<?x?xi1, #dhlo.shape<["s1", "past4 + s1"]>>) -> tensor<1x4x?x?xi1, #dhlo.shape<["1", "4", "s1", "past4 + s1"]>>
    %10 = "dhlo.attention"(%arg0, %3, %4, %9) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, past = "0", scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>, tensor<1x4x?x?xi1, #dhlo.shape<["1", "4", "s1", "past4 + s1"]>>) -> tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>>
    return %10, %3, %4 : tensor<1x4x?x16xf32, #dhlo.shape<["1", "4", "s1", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>, tensor<1x2x?x16xf32, #dhlo.shape<["1", "2", "past4 + s1", "16"]>>
  }
}
