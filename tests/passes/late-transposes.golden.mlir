module {
  func.func @main(%arg0: tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>, %arg1: tensor<?x12x6xf32, #dhlo.shape<["b", "12", "6"]>>) -> (tensor<?x3x?xf32, #dhlo.shape<["b", "3", "n"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n + 3"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>, tensor<?x6xf32, #dhlo.shape<["b", "6"]>>, tensor<6x?xf32, #dhlo.shape<["6", "n"]>>, tensor<?x6x3xf32, #dhlo.shape<["b", "6", "3"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>, tensor<?x?xf32, #dhlo.shape<["b", "n"]>>) {
    %0 = "dhlo.slice"(%arg0) {starts = ["0", "0", "1"], steps = [1, 1, 2]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>
    %1 = "dhlo.transpose"(%0) {perm = [0, 2, 1]} : (tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>) -> tensor<?x3x?xf32, #dhlo.shape<["b", "3", "n"]>>
    %2 = "dhlo.pad"(%arg0) {low = ["0", "1", "0"], value = 0.000000e+00 : f64} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x?x6xf32, #dhlo.shape<["b", "n + 3", "6"]>>
    %3 = "dhlo.transpose"(%2) {perm = [0, 2, 1]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n + 3", "6"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n + 3"]>>
    %4 = "dhlo.reverse"(%arg0) {dims = [1]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>
    %5 = "dhlo.transpose"(%4) {perm = [0, 2, 1]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
    %6 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>
    %7 = "dhlo.maximum"(%arg0, %6) : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>, tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>
    %8 = "dhlo.reduce"(%7) {dims = [1], how = "sum"} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x6xf32, #dhlo.shape<["b", "6"]>>
    %9 = "dhlo.reduce"(%arg0) {dims = [0], how = "max"} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x6xf32, #dhlo.shape<["n", "6"]>>
    %10 = "dhlo.transpose"(%9) {perm = [1, 0]} : (tensor<?x6xf32, #dhlo.shape<["n", "6"]>>) -> tensor<6x?xf32, #dhlo.shape<["6", "n"]>>
    %11 = "dhlo.reshape"(%arg1) : (tensor<?x12x6xf32, #dhlo.shape<["b", "12", "6"]>>) -> tensor<?x3x4x6xf32, #dhlo.shape<["b", "3", "4", "6"]>>
    %12 = "dhlo.reduce"(%11) {dims = [2], how = "max"} : (tensor<?x3x4x6xf32, #dhlo.shape<["b", "3", "4", "6"]>>) -> tensor<?x3x6xf32, #dhlo.shape<["b", "3", "6"]>>
    %13 = "dhlo.transpose"(%12) {perm = [0, 2, 1]} : (tensor<?x3x6xf32, #dhlo.shape<["b", "3", "6"]>>) -> tensor<?x6x3xf32, #dhlo.shape<["b", "6", "3"]>>
    %14 = "dhlo.transpose"(%arg0) {perm = [0, 2, 1]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
    %15 = "dhlo.exp"(%14) : (tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
    %16 = "dhlo.reduce"(%15) {dims = [1], how = "sum"} : (tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>) -> tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
    %17 = "dhlo.broadcast"(%16) {dims = [0, 2]} : (tensor<?x?xf32, #dhlo.shape<["b", "n"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
    %18 = "dhlo.div"(%15, %17) : (tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>) -> tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>
    %19 = "dhlo.transpose"(%arg0) {perm = [1, 0, 2]} : (tensor<?x?x6xf32, #dhlo.shape<["b", "n", "6"]>>) -> tensor<?x?x6xf32, #dhlo.shape<["n", "b", "6"]>>
    %20 = "dhlo.reduce"(%19) {dims = [2], how = "sum"} : (tensor<?x?x6xf32, #dhlo.shape<["n", "b", "6"]>>) -> tensor<?x?xf32, #dhlo.shape<["n", "b"]>>
    %21 = "dhlo.transpose"(%20) {perm = [1, 0]} : (tensor<?x?xf32, #dhlo.shape<["n", "b"]>>) -> tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
    return %1, %3, %5, %8, %10, %13, %18, %21 : tensor<?x3x?xf32, #dhlo.shape<["b", "3", "n"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n + 3"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>, tensor<?x6xf32, #dhlo.shape<["b", "6"]>>, tensor<6x?xf32, #dhlo.shape<["6", "n"]>>, tensor<?x6x3xf32, #dhlo.shape<["b", "6", "3"]>>, tensor<?x6x?xf32, #dhlo.shape<["b", "6", "n"]>>, tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
  }
}
