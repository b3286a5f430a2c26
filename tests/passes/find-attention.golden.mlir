module {
  func.func @main(%arg0: tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>> {dhlo.name = "q"}, %arg1: tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>> {dhlo.name = "k"}, %arg2: tensor<4xf32> {dhlo.name = "sinks"}, %arg3: tensor<?x4x?x?xi1, #dhlo.shape<["n", "4", "s", "t"]>> {dhlo.name = "sees"}) -> (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>) {
    %0 = "dhlo.transpose"(%arg1) {perm = [0, 1, 3, 2]} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>) -> tensor<?x4x8x?xf32, #dhlo.shape<["n", "4", "8", "t"]>>
    %1 = "dhlo.matmul"(%arg0, %0) : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x8x?xf32, #dhlo.shape<["n", "4", "8", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %2 = "dhlo.full"() {value = "0.25"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %3 = "dhlo.mul"(%1, %2) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %4 = "dhlo.full"() {value = "50.0"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %5 = "dhlo.div"(%3, %4) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %6 = "dhlo.tanh"(%5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %7 = "dhlo.mul"(%6, %4) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %8 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %9 = "dhlo.full"() {value = "-3.4028234663852886e+38"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %10 = "dhlo.select"(%arg3, %8, %9) : (tensor<?x4x?x?xi1, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %11 = "dhlo.add"(%7, %10) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %12 = "dhlo.full"() {value = "1.0"} : () -> tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>
    %13 = "dhlo.reshape"(%arg2) : (tensor<4xf32>) -> tensor<1x4x1x1xf32>
    %14 = "dhlo.reshape"(%13) : (tensor<1x4x1x1xf32>) -> tensor<4xf32>
    %15 = "dhlo.attention"(%arg0, %arg1, %arg1, %arg3, %14) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>, past = "0", scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x?xi1, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<4xf32>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    %16 = "dhlo.reduce"(%11) {dims = [3], how = "maxnum"} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?xf32, #dhlo.shape<["n", "4", "s"]>>
    %17 = "dhlo.reshape"(%16) : (tensor<?x4x?xf32, #dhlo.shape<["n", "4", "s"]>>) -> tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>
    %18 = "dhlo.broadcast"(%17) {dims = [0, 1, 2, 3]} : (tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %19 = "dhlo.sub"(%11, %18) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %20 = "dhlo.exp_below"(%19) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %21 = "dhlo.reduce"(%20) {dims = [3], how = "sum"} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?xf32, #dhlo.shape<["n", "4", "s"]>>
    %22 = "dhlo.reshape"(%21) : (tensor<?x4x?xf32, #dhlo.shape<["n", "4", "s"]>>) -> tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>
    %23 = "dhlo.div"(%12, %22) : (tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>, tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>) -> tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>
    %24 = "dhlo.broadcast"(%23) {dims = [0, 1, 2, 3]} : (tensor<?x4x?x1xf32, #dhlo.shape<["n", "4", "s", "1"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %25 = "dhlo.mul"(%20, %24) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %26 = "dhlo.matmul"(%25, %arg1) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    %27 = "dhlo.neg"(%10) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %28 = "dhlo.full"() {value = "-inf"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %29 = "dhlo.select"(%arg3, %27, %28) : (tensor<?x4x?x?xi1, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>
    %30 = "dhlo.attention"(%arg0, %arg1, %arg1, %29) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, past = "0", scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    %31 = "dhlo.attention"(%arg0, %arg1, %arg1, %10) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, past = "0", scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64} : (tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "t", "8"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "s", "t"]>>) -> tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
    return %15, %26, %30, %31 : tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>, tensor<?x4x?x8xf32, #dhlo.shape<["n", "4", "s", "8"]>>
  }
}
