module {
  func.func @main(%arg0: tensor<?x?xf32, #dhlo.shape<["m", "k"]>>, %arg1: tensor<?x1xf32, #dhlo.shape<["k", "1"]>>, %arg2: tensor<?x?xf32, #dhlo.shape<["k", "m"]>>, %arg3: tensor<1x?xf32, #dhlo.shape<["1", "k"]>>, %arg4: tensor<?x?x8xbf16, #dhlo.shape<["b", "m", "8"]>>, %arg5: tensor<?x8x1xbf16, #dhlo.shape<["b", "8", "1"]>>, %arg6: tensor<1x8xf32>) -> (tensor<?x1xf32, #dhlo.shape<["m", "1"]>>, tensor<?x1xf32, #dhlo.shape<["m", "1"]>>, tensor<1x?xf32, #dhlo.shape<["1", "m"]>>, tensor<?x?x1xbf16, #dhlo.shape<["b", "m", "1"]>>, tensor<1x5xf32>) {
    %0 = "dhlo.reshape"(%arg1) : (tensor<?x1xf32, #dhlo.shape<["k", "1"]>>) -> tensor<?xf32, #dhlo.shape<["k"]>>
    %1 = "dhlo.broadcast"(%0) {dims = [1]} : (tensor<?xf32, #dhlo.shape<["k"]>>) -> tensor<?x?xf32, #dhlo.shape<["m", "k"]>>
    %2 = "dhlo.mul"(%arg0, %1) : (tensor<?x?xf32, #dhlo.shape<["m", "k"]>>, tensor<?x?xf32, #dhlo.shape<["m", "k"]>>) -> tensor<?x?xf32, #dhlo.shape<["m", "k"]>>
    %3 = "dhlo.reduce"(%2) {dims = [1], how = "sum"} : (tensor<?x?xf32, #dhlo.shape<["m", "k"]>>) -> tensor<?xf32, #dhlo.shape<["m"]>>
    %4 = "dhlo.reshape"(%3) : (tensor<?xf32, #dhlo.shape<["m"]>>) -> tensor<?x1xf32, #dhlo.shape<["m", "1"]>>
    %5 = "dhlo.reshape"(%arg1) : (tensor<?x1xf32, #dhlo.shape<["k", "1"]>>) -> tensor<?xf32, #dhlo.shape<["k"]>>
    %6 = "dhlo.broadcast"(%5) {dims = [0]} : (tensor<?xf32, #dhlo.shape<["k"]>>) -> tensor<?x?xf32, #dhlo.shape<["k", "m"]>>
    %7 = "dhlo.mul"(%arg2, %6) : (tensor<?x?xf32, #dhlo.shape<["k", "m"]>>, tensor<?x?xf32, #dhlo.shape<["k", "m"]>>) -> tensor<?x?xf32, #dhlo.shape<["k", "m"]>>
    %8 = "dhlo.reduce"(%7) {dims = [0], how = "sum"} : (tensor<?x?xf32, #dhlo.shape<["k", "m"]>>) -> tensor<?xf32, #dhlo.shape<["m"]>>
    %9 = "dhlo.reshape"(%8) : (tensor<?xf32, #dhlo.shape<["m"]>>) -> tensor<?x1xf32, #dhlo.shape<["m", "1"]>>
    %10 = "dhlo.reshape"(%arg3) : (tensor<1x?xf32, #dhlo.shape<["1", "k"]>>) -> tensor<?xf32, #dhlo.shape<["k"]>>
    %11 = "dhlo.broadcast"(%10) {dims = [1]} : (tensor<?xf32, #dhlo.shape<["k"]>>) -> tensor<?x?xf32, #dhlo.shape<["m", "k"]>>
    %12 = "dhlo.mul"(%arg0, %11) : (tensor<?x?xf32, #dhlo.shape<["m", "k"]>>, tensor<?x?xf32, #dhlo.shape<["m", "k"]>>) -> tensor<?x?xf32, #dhlo.shape<["m", "k"]>>
    %13 = "dhlo.reduce"(%12) {dims = [1], how = "sum"} : (tensor<?x?xf32, #dhlo.shape<["m", "k"]>>) -> tensor<?xf32, #dhlo.shape<["m"]>>
    %14 = "dhlo.reshape"(%13) : (tensor<?xf32, #dhlo.shape<["m"]>>) -> tensor<1x?xf32, #dhlo.shape<["1", "m"]>>
    %15 = "dhlo.reshape"(%arg5) : (tensor<?x8x1xbf16, #dhlo.shape<["b", "8", "1"]>>) -> tensor<?x1x8xbf16, #dhlo.shape<["b", "1", "8"]>>
    %16 = "dhlo.convert"(%arg4) : (tensor<?x?x8xbf16, #dhlo.shape<["b", "m", "8"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>
    %17 = "dhlo.convert"(%15) : (tensor<?x1x8xbf16, #dhlo.shape<["b", "1", "8"]>>) -> tensor<?x1x8xf32, #dhlo.shape<["b", "1", "8"]>>
    %18 = "dhlo.broadcast"(%17) {dims = [0, 1, 2]} : (tensor<?x1x8xf32, #dhlo.shape<["b", "1", "8"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>
    %19 = "dhlo.mul"(%16, %18) : (tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>, tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>
    %20 = "dhlo.reduce"(%19) {dims = [2], how = "sum"} : (tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>) -> tensor<?x?xf32, #dhlo.shape<["b", "m"]>>
    %21 = "dhlo.convert"(%20) : (tensor<?x?xf32, #dhlo.shape<["b", "m"]>>) -> tensor<?x?xbf16, #dhlo.shape<["b", "m"]>>
    %22 = "dhlo.reshape"(%21) : (tensor<?x?xbf16, #dhlo.shape<["b", "m"]>>) -> tensor<?x?x1xbf16, #dhlo.shape<["b", "m", "1"]>>
    %23 = "dhlo.weight"() {name_ = "w"} : () -> tensor<5x8xf32>
    %24 = "dhlo.transpose"(%23) {perm = [1, 0]} : (tensor<5x8xf32>) -> tensor<8x5xf32>
    %25 = "dhlo.matmul"(%arg6, %24) : (tensor<1x8xf32>, tensor<8x5xf32>) -> tensor<1x5xf32>
    return %4, %9, %14, %22, %25 : tensor<?x1xf32, #dhlo.shape<["m", "1"]>>, tensor<?x1xf32, #dhlo.shape<["m", "1"]>>, tensor<1x?xf32, #dhlo.shape<["1", "m"]>>, tensor<?x?x1xbf16, #dhlo.shape<["b", "m", "1"]>>, tensor<1x5xf32>
  }
}
