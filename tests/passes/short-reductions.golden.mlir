module {
  func.func @main(%arg0: tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>, %arg1: tensor<?x?x2xi1, #dhlo.shape<["b", "n", "2"]>>, %arg2: tensor<?x3xbf16, #dhlo.shape<["n", "3"]>>, %arg3: tensor<?x5xf32, #dhlo.shape<["n", "5"]>>, %arg4: tensor<7x3xf32>) -> (tensor<?x?xf32, #dhlo.shape<["b", "n"]>>, tensor<?x?xi1, #dhlo.shape<["b", "n"]>>, tensor<?xbf16, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<7xf32>, tensor<?x3xf32, #dhlo.shape<["b", "3"]>>) {
    %0 = "dhlo.slice"(%arg0) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>) -> tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>
    %1 = "dhlo.slice"(%arg0) {starts = ["0", "0", "1"], steps = [1, 1, 1]} : (tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>) -> tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>
    %2 = "dhlo.slice"(%arg0) {starts = ["0", "0", "2"], steps = [1, 1, 1]} : (tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>) -> tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>
    %3 = "dhlo.add"(%0, %1) : (tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>, tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>) -> tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>
    %4 = "dhlo.add"(%3, %2) : (tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>, tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>) -> tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>
    %5 = "dhlo.reshape"(%4) : (tensor<?x?x1xf32, #dhlo.shape<["b", "n", "1"]>>) -> tensor<?x?xf32, #dhlo.shape<["b", "n"]>>
    %6 = "dhlo.slice"(%arg1) {starts = ["0", "0", "0"], steps = [1, 1, 1]} : (tensor<?x?x2xi1, #dhlo.shape<["b", "n", "2"]>>) -> tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>
    %7 = "dhlo.slice"(%arg1) {starts = ["0", "0", "1"], steps = [1, 1, 1]} : (tensor<?x?x2xi1, #dhlo.shape<["b", "n", "2"]>>) -> tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>
    %8 = "dhlo.or"(%6, %7) : (tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>, tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>) -> tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>
    %9 = "dhlo.reshape"(%8) : (tensor<?x?x1xi1, #dhlo.shape<["b", "n", "1"]>>) -> tensor<?x?xi1, #dhlo.shape<["b", "n"]>>
    %10 = "dhlo.reduce"(%arg2) {dims = [1], how = "sum"} : (tensor<?x3xbf16, #dhlo.shape<["n", "3"]>>) -> tensor<?xbf16, #dhlo.shape<["n"]>>
    %11 = "dhlo.reduce"(%arg3) {dims = [1], how = "max"} : (tensor<?x5xf32, #dhlo.shape<["n", "5"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %12 = "dhlo.reduce"(%arg4) {dims = [1], how = "min"} : (tensor<7x3xf32>) -> tensor<7xf32>
    %13 = "dhlo.reduce"(%arg0) {dims = [1], how = "sum"} : (tensor<?x?x3xf32, #dhlo.shape<["b", "n", "3"]>>) -> tensor<?x3xf32, #dhlo.shape<["b", "3"]>>
    return %5, %9, %10, %11, %12, %13 : tensor<?x?xf32, #dhlo.shape<["b", "n"]>>, tensor<?x?xi1, #dhlo.shape<["b", "n"]>>, tensor<?xbf16, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<7xf32>, tensor<?x3xf32, #dhlo.shape<["b", "3"]>>
  }
}
