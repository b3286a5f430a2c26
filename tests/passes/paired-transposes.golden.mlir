module {
  func.func @main(%arg0: tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>, %arg1: tensor<24xf32>) -> (tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["h", "n", "w", "24"]>>, tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>, tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>) {
    %0 = "dhlo.transpose"(%arg0) {perm = [0, 3, 1, 2]} : (tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>) -> tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
    %1 = "dhlo.broadcast"(%arg1) {dims = [3]} : (tensor<24xf32>) -> tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
    %2 = "dhlo.add"(%arg0, %1) : (tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
    %3 = "dhlo.reshape"(%2) : (tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>) -> tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>
    %4 = "dhlo.full"() {value = "2.0"} : () -> tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>
    %5 = "dhlo.mul"(%4, %3) : (tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>, tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>) -> tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>
    %6 = "dhlo.exp"(%arg0) : (tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
    %7 = "dhlo.transpose"(%6) {perm = [1, 0, 2, 3]} : (tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["h", "n", "w", "24"]>>
    %8 = "dhlo.abs"(%0) : (tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>) -> tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
    %9 = "dhlo.neg"(%0) : (tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>) -> tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
    %10 = "dhlo.transpose"(%9) {perm = [0, 2, 3, 1]} : (tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>
    return %5, %7, %8, %10, %9 : tensor<?x?x24xf32, #dhlo.shape<["n", "h*w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["h", "n", "w", "24"]>>, tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["n", "h", "w", "24"]>>, tensor<?x24x?x?xf32, #dhlo.shape<["n", "24", "h", "w"]>>
  }
  func.func @mixed(%arg0: tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>, %arg1: tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>) -> (tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>, tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>) {
    %0 = "dhlo.weight"() {name_ = "w"} : () -> tensor<5x7xf32>
    %1 = "dhlo.weight"() {name_ = "v"} : () -> tensor<7x5xf32>
    %2 = "dhlo.weight"() {name_ = "square"} : () -> tensor<7x7xf32>
    %3 = "dhlo.weight"() {name_ = "bias"} : () -> tensor<5xf32>
    %4 = "dhlo.broadcast"(%0) {dims = [1, 2]} : (tensor<5x7xf32>) -> tensor<?x5x7xf32, #dhlo.shape<["n", "5", "7"]>>
    %5 = "dhlo.matmul"(%4, %arg0) : (tensor<?x5x7xf32, #dhlo.shape<["n", "5", "7"]>>, tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>) -> tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>
    %6 = "dhlo.broadcast"(%3) {dims = [1]} : (tensor<5xf32>) -> tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>
    %7 = "dhlo.add"(%5, %6) : (tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>, tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>) -> tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>
    %8 = "dhlo.sigmoid"(%7) : (tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>) -> tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>
    %9 = "dhlo.mul"(%7, %8) : (tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>, tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>) -> tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>
    %10 = "dhlo.broadcast"(%1) {dims = [1, 2]} : (tensor<7x5xf32>) -> tensor<?x7x5xf32, #dhlo.shape<["n", "7", "5"]>>
    %11 = "dhlo.matmul"(%10, %9) : (tensor<?x7x5xf32, #dhlo.shape<["n", "7", "5"]>>, tensor<?x5x48xf32, #dhlo.shape<["n", "5", "48"]>>) -> tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>
    %12 = "dhlo.add"(%11, %arg0) : (tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>, tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>) -> tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>
    %13 = "dhlo.transpose"(%arg1) {perm = [0, 2, 1]} : (tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>) -> tensor<?x?x7xf32, #dhlo.shape<["n", "w", "7"]>>
    %14 = "dhlo.matmul"(%13, %2) : (tensor<?x?x7xf32, #dhlo.shape<["n", "w", "7"]>>, tensor<7x7xf32>) -> tensor<?x?x7xf32, #dhlo.shape<["n", "w", "7"]>>
    %15 = "dhlo.transpose"(%14) {perm = [0, 2, 1]} : (tensor<?x?x7xf32, #dhlo.shape<["n", "w", "7"]>>) -> tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>
    return %12, %15 : tensor<?x7x48xf32, #dhlo.shape<["n", "7", "48"]>>, tensor<?x7x?xf32, #dhlo.shape<["n", "7", "w"]>>
  }
}
