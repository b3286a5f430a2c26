module {
  func.func @main(%arg0: tensor<?x2x?x7xf32, #dhlo.shape<["s0", "2", "s1", "7"]>> {dhlo.name = "q"}, %arg1: tensor<?x1x?x5xf32, #dhlo.shape<["s0", "1", "s2", "5"]>> {dhlo.name = "latents", dhlo.page = 16 : i64}, %arg2: tensor<?x1x?x3xf32, #dhlo.shape<["s0", "1", "s2", "3"]>> {dhlo.name = "turned", dhlo.page = 16 : i64}, %arg3: tensor<?x2x?x?xi1, #dhlo.shape<["s0", "2", "s1", "s2"]>> {dhlo.name = "mask"}) -> tensor<?x2x?x6xf32, #dhlo.shape<["s0", "2", "s1", "6"]>> {
    %0 = "dhlo.weight"() {name_ = "w"} : () -> tensor<20x5xf32>
    %1 = "dhlo.transpose"(%0) {perm = [1, 0]} : (tensor<20x5xf32>) -> tensor<5x20xf32>
    %2 = "dhlo.slice"(%arg0) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (tensor<?x2x?x7xf32, #dhlo.shape<["s0", "2", "s1", "7"]>>) -> tensor<?x2x?x4xf32, #dhlo.shape<["s0", "2", "s1", "4"]>>
    %3 = "dhlo.slice"(%arg0) {starts = ["0", "0", "0", "4"], steps = [1, 1, 1, 1]} : (tensor<?x2x?x7xf32, #dhlo.shape<["s0", "2", "s1", "7"]>>) -> tensor<?x2x?x3xf32, #dhlo.shape<["s0", "2", "s1", "3"]>>
    %4 = "dhlo.transpose"(%1) {perm = [1, 0]} : (tensor<5x20xf32>) -> tensor<20x5xf32>
    %5 = "dhlo.reshape"(%4) : (tensor<20x5xf32>) -> tensor<2x10x5xf32>
    %6 = "dhlo.slice"(%5) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (tensor<2x10x5xf32>) -> tensor<2x4x5xf32>
    %7 = "dhlo.broadcast"(%6) {dims = [1, 2, 3]} : (tensor<2x4x5xf32>) -> tensor<?x2x4x5xf32, #dhlo.shape<["s0", "2", "4", "5"]>>
    %8 = "dhlo.matmul"(%2, %7) : (tensor<?x2x?x4xf32, #dhlo.shape<["s0", "2", "s1", "4"]>>, tensor<?x2x4x5xf32, #dhlo.shape<["s0", "2", "4", "5"]>>) -> tensor<?x2x?x5xf32, #dhlo.shape<["s0", "2", "s1", "5"]>>
    %9 = "dhlo.concat"(%arg1, %arg2) {dim = 3 : i64} : (tensor<?x1x?x5xf32, #dhlo.shape<["s0", "1", "s2", "5"]>>, tensor<?x1x?x3xf32, #dhlo.shape<["s0", "1", "s2", "3"]>>) -> tensor<?x1x?x8xf32, #dhlo.shape<["s0", "1", "s2", "8"]>>
    %10 = "dhlo.slice"(%9) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (tensor<?x1x?x8xf32, #dhlo.shape<["s0", "1", "s2", "8"]>>) -> tensor<?x1x?x5xf32, #dhlo.shape<["s0", "1", "s2", "5"]>>
    %11 = "dhlo.concat"(%8, %3) {dim = 3 : i64} : (tensor<?x2x?x5xf32, #dhlo.shape<["s0", "2", "s1", "5"]>>, tensor<?x2x?x3xf32, #dhlo.shape<["s0", "2", "s1", "3"]>>) -> tensor<?x2x?x8xf32, #dhlo.shape<["s0", "2", "s1", "8"]>>
    %12 = "dhlo.attention"(%11, %9, %10, %arg3) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, past = "0", scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x2x?x8xf32, #dhlo.shape<["s0", "2", "s1", "8"]>>, tensor<?x1x?x8xf32, #dhlo.shape<["s0", "1", "s2", "8"]>>, tensor<?x1x?x5xf32, #dhlo.shape<["s0", "1", "s2", "5"]>>, tensor<?x2x?x?xi1, #dhlo.shape<["s0", "2", "s1", "s2"]>>) -> tensor<?x2x?x5xf32, #dhlo.shape<["s0", "2", "s1", "5"]>>
    %13 = "dhlo.transpose"(%1) {perm = [1, 0]} : (tensor<5x20xf32>) -> tensor<20x5xf32>
    %14 = "dhlo.reshape"(%13) : (tensor<20x5xf32>) -> tensor<2x10x5xf32>
    %15 = "dhlo.slice"(%14) {starts = ["0", "4", "0"], steps = [1, 1, 1]} : (tensor<2x10x5xf32>) -> tensor<2x6x5xf32>
    %16 = "dhlo.transpose"(%15) {perm = [0, 2, 1]} : (tensor<2x6x5xf32>) -> tensor<2x5x6xf32>
    %17 = "dhlo.broadcast"(%16) {dims = [1, 2, 3]} : (tensor<2x5x6xf32>) -> tensor<?x2x5x6xf32, #dhlo.shape<["s0", "2", "5", "6"]>>
    %18 = "dhlo.matmul"(%12, %17) : (tensor<?x2x?x5xf32, #dhlo.shape<["s0", "2", "s1", "5"]>>, tensor<?x2x5x6xf32, #dhlo.shape<["s0", "2", "5", "6"]>>) -> tensor<?x2x?x6xf32, #dhlo.shape<["s0", "2", "s1", "6"]>>
    return %18 : tensor<?x2x?x6xf32, #dhlo.shape<["s0", "2", "s1", "6"]>>
  }
}
