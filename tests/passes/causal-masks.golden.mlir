module {
  func.func @main(%arg0: tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>> {dhlo.name = "q"}, %arg1: tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>> {dhlo.name = "k"}, %arg2: tensor<2x?xi1, #dhlo.shape<["2", "s1 + s2"]>> {dhlo.name = "real"}, %arg3: tensor<?xi1, #dhlo.shape<["s2"]>> {dhlo.name = "past"}) -> (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>) {
    %0 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %1 = "dhlo.full"() {value = "s2"} : () -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %2 = "dhlo.add"(%0, %1) : (tensor<?xi64, #dhlo.shape<["s1"]>>, tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<?xi64, #dhlo.shape<["s1"]>>
    %3 = "dhlo.reshape"(%2) : (tensor<?xi64, #dhlo.shape<["s1"]>>) -> tensor<?x1xi64, #dhlo.shape<["s1", "1"]>>
    %4 = "dhlo.broadcast"(%3) {dims = [0, 1]} : (tensor<?x1xi64, #dhlo.shape<["s1", "1"]>>) -> tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
    %5 = "dhlo.iota"() {dim = 0 : i64, start = "0", step = "1"} : () -> tensor<?xi64, #dhlo.shape<["s1 + s2"]>>
    %6 = "dhlo.broadcast"(%5) {dims = [1]} : (tensor<?xi64, #dhlo.shape<["s1 + s2"]>>) -> tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
    %7 = "dhlo.le"(%6, %4) : (tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
    %8 = "dhlo.broadcast"(%7) {dims = [2, 3]} : (tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %9 = "dhlo.attention"(%arg0, %arg1, %arg1) {causal = true, past = "s2", scale = 5.000000e-01 : f64} : (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>) -> tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
    %10 = "dhlo.full"() {value = "3"} : () -> tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
    %11 = "dhlo.sub"(%4, %10) : (tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>
    %12 = "dhlo.lt"(%11, %6) : (tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
    %13 = "dhlo.and"(%12, %7) : (tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
    %14 = "dhlo.broadcast"(%13) {dims = [2, 3]} : (tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %15 = "dhlo.attention"(%arg0, %arg1, %arg1, %14) {causal = true, past = "s2", scale = 5.000000e-01 : f64} : (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>) -> tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
    %16 = "dhlo.broadcast"(%arg2) {dims = [0, 3]} : (tensor<2x?xi1, #dhlo.shape<["2", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %17 = "dhlo.and"(%8, %16) : (tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>, tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %18 = "dhlo.attention"(%arg0, %arg1, %arg1, %17) {causal = true, past = "s2", scale = 5.000000e-01 : f64} : (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>) -> tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
    %19 = "dhlo.ge"(%6, %4) : (tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>, tensor<?x?xi64, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>
    %20 = "dhlo.broadcast"(%19) {dims = [2, 3]} : (tensor<?x?xi1, #dhlo.shape<["s1", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %21 = "dhlo.attention"(%arg0, %arg1, %arg1, %20) {causal = false, past = "0", scale = 5.000000e-01 : f64} : (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>) -> tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
    %22 = "dhlo.iota"() {dim = 0 : i64, start = "s2", step = "1"} : () -> tensor<1xi64>
    %23 = "dhlo.reshape"(%22) : (tensor<1xi64>) -> tensor<1x1xi64>
    %24 = "dhlo.broadcast"(%23) {dims = [0, 1]} : (tensor<1x1xi64>) -> tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>
    %25 = "dhlo.broadcast"(%5) {dims = [1]} : (tensor<?xi64, #dhlo.shape<["s1 + s2"]>>) -> tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>
    %26 = "dhlo.le"(%25, %24) : (tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>, tensor<1x?xi64, #dhlo.shape<["1", "s1 + s2"]>>) -> tensor<1x?xi1, #dhlo.shape<["1", "s1 + s2"]>>
    %27 = "dhlo.broadcast"(%26) {dims = [2, 3]} : (tensor<1x?xi1, #dhlo.shape<["1", "s1 + s2"]>>) -> tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>
    %28 = "dhlo.attention"(%arg0, %arg1, %arg1, %27) {causal = false, past = "0", scale = 5.000000e-01 : f64} : (tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1 + s2", "8"]>>, tensor<2x1x?x?xi1, #dhlo.shape<["2", "1", "s1", "s1 + s2"]>>) -> tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
    return %9, %15, %18, %21, %28 : tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>, tensor<2x1x?x8xf32, #dhlo.shape<["2", "1", "s1", "8"]>>
  }
}
