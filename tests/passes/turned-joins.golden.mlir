module {
  func.func @main(%arg0: tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>, %arg1: tensor<?x2xf32, #dhlo.shape<["w", "2"]>>, %arg2: tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, %arg3: tensor<12xf32>) -> (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, tensor<?x?x?x14xf32, #dhlo.shape<["b", "h", "w", "14"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x4xf32, #dhlo.shape<["b", "h", "w", "4"]>>, tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) {
    %0 = "dhlo.transpose"(%arg0) {perm = [0, 2, 3, 1]} : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
    %1 = "dhlo.slice"(%0) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>
    %2 = "dhlo.slice"(%arg0) {starts = ["0", "2", "0", "0"], steps = [1, 1, 1, 1]} : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x10x?x?xf32, #dhlo.shape<["b", "10", "h", "w"]>>
    %3 = "dhlo.sigmoid"(%2) : (tensor<?x10x?x?xf32, #dhlo.shape<["b", "10", "h", "w"]>>) -> tensor<?x10x?x?xf32, #dhlo.shape<["b", "10", "h", "w"]>>
    %4 = "dhlo.transpose"(%arg1) {perm = [1, 0]} : (tensor<?x2xf32, #dhlo.shape<["w", "2"]>>) -> tensor<2x?xf32, #dhlo.shape<["2", "w"]>>
    %5 = "dhlo.broadcast"(%4) {dims = [1, 3]} : (tensor<2x?xf32, #dhlo.shape<["2", "w"]>>) -> tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>
    %6 = "dhlo.slice"(%arg0) {starts = ["0", "0", "0", "0"], steps = [1, 1, 1, 1]} : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>
    %7 = "dhlo.add"(%6, %5) : (tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>, tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>) -> tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>
    %8 = "dhlo.concat"(%7, %3) {dim = 1 : i64} : (tensor<?x2x?x?xf32, #dhlo.shape<["b", "2", "h", "w"]>>, tensor<?x10x?x?xf32, #dhlo.shape<["b", "10", "h", "w"]>>) -> tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>
    %9 = "dhlo.transpose"(%8) {perm = [0, 2, 3, 1]} : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
    %10 = "dhlo.full"() {value = "3.0"} : () -> tensor<?x1x?x?xf32, #dhlo.shape<["b", "1", "h", "w"]>>
    %11 = "dhlo.broadcast"(%arg3) {dims = [1]} : (tensor<12xf32>) -> tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>
    %12 = "dhlo.mul"(%arg0, %11) : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>, tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>
    %13 = "dhlo.iota"() {dim = 3 : i64, start = "1", step = "2"} : () -> tensor<?x1x?x?xf32, #dhlo.shape<["b", "1", "h", "w"]>>
    %14 = "dhlo.concat"(%13, %12, %10) {dim = 1 : i64} : (tensor<?x1x?x?xf32, #dhlo.shape<["b", "1", "h", "w"]>>, tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>, tensor<?x1x?x?xf32, #dhlo.shape<["b", "1", "h", "w"]>>) -> tensor<?x14x?x?xf32, #dhlo.shape<["b", "14", "h", "w"]>>
    %15 = "dhlo.transpose"(%14) {perm = [0, 2, 3, 1]} : (tensor<?x14x?x?xf32, #dhlo.shape<["b", "14", "h", "w"]>>) -> tensor<?x?x?x14xf32, #dhlo.shape<["b", "h", "w", "14"]>>
    %16 = "dhlo.sigmoid"(%0) : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
    %17 = "dhlo.concat"(%16, %0) {dim = 3 : i64} : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>
    %18 = "dhlo.concat"(%0, %arg2) {dim = 3 : i64} : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>
    %19 = "dhlo.transpose"(%arg0) {perm = [0, 2, 3, 1]} : (tensor<?x12x?x?xf32, #dhlo.shape<["b", "12", "h", "w"]>>) -> tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
    %20 = "dhlo.transpose"(%arg2) {perm = [0, 1, 2, 3]} : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
    %21 = "dhlo.concat"(%19, %20) {dim = 3 : i64} : (tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>) -> tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>
    %22 = "dhlo.exp"(%1) : (tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>) -> tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>
    %23 = "dhlo.concat"(%22, %1) {dim = 3 : i64} : (tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>, tensor<?x?x?x2xf32, #dhlo.shape<["b", "h", "w", "2"]>>) -> tensor<?x?x?x4xf32, #dhlo.shape<["b", "h", "w", "4"]>>
    return %9, %15, %17, %18, %21, %23, %16 : tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>, tensor<?x?x?x14xf32, #dhlo.shape<["b", "h", "w", "14"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x24xf32, #dhlo.shape<["b", "h", "w", "24"]>>, tensor<?x?x?x4xf32, #dhlo.shape<["b", "h", "w", "4"]>>, tensor<?x?x?x12xf32, #dhlo.shape<["b", "h", "w", "12"]>>
  }
}
