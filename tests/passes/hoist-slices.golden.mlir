module {
  func.func @main(%arg0: tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>> {
    %0 = "dhlo.weight"() {name_ = "q.weight"} : () -> tensor<8x8xf32>
    %1 = "dhlo.weight"() {name_ = "k.weight"} : () -> tensor<8x8xf32>
    %2 = "dhlo.weight"() {name_ = "o.weight"} : () -> tensor<8x8xf32>
    %3 = "dhlo.slice"(%arg0) {starts = ["0", "s", "0"], steps = [1, 1, 1]} : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %4 = "dhlo.matmul"(%3, %0) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<8x8xf32>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %5 = "dhlo.matmul"(%arg0, %1) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>
    %6 = "dhlo.reshape"(%4) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>
    %7 = "dhlo.reshape"(%5) : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x?x2x4xf32, #dhlo.shape<["n", "s + 1", "2", "4"]>>
    %8 = "dhlo.transpose"(%6) {perm = [0, 2, 1, 3]} : (tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>) -> tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>
    %9 = "dhlo.transpose"(%7) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #dhlo.shape<["n", "s + 1", "2", "4"]>>) -> tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>
    %10 = "dhlo.attention"(%8, %9, %9) {causal = false, past = "0", scale = 5.000000e-01 : f64} : (tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>, tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>, tensor<?x2x?x4xf32, #dhlo.shape<["n", "2", "s + 1", "4"]>>) -> tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>
    %11 = "dhlo.transpose"(%10) {perm = [0, 2, 1, 3]} : (tensor<?x2x1x4xf32, #dhlo.shape<["n", "2", "1", "4"]>>) -> tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>
    %12 = "dhlo.reshape"(%11) : (tensor<?x1x2x4xf32, #dhlo.shape<["n", "1", "2", "4"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %13 = "dhlo.matmul"(%12, %2) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<8x8xf32>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %14 = "dhlo.slice"(%arg0) {starts = ["0", "s", "0"], steps = [1, 1, 1]} : (tensor<?x?x8xf32, #dhlo.shape<["n", "s + 1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %15 = "dhlo.add"(%13, %14) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %16 = "dhlo.reduce"(%15) {dims = [2], how = "max"} : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1xf32, #dhlo.shape<["n", "1"]>>
    %17 = "dhlo.reshape"(%16) : (tensor<?x1xf32, #dhlo.shape<["n", "1"]>>) -> tensor<?x1x1xf32, #dhlo.shape<["n", "1", "1"]>>
    %18 = "dhlo.broadcast"(%17) {dims = [0, 1, 2]} : (tensor<?x1x1xf32, #dhlo.shape<["n", "1", "1"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    %19 = "dhlo.div"(%15, %18) : (tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>, tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
    return %19 : tensor<?x1x8xf32, #dhlo.shape<["n", "1", "8"]>>
  }
}
