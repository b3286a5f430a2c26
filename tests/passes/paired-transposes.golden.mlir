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
}
